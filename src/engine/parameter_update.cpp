#include "engine/parameter_update.h"

namespace hydra {

void update_parameter(const Optimizer& optimizer, const ParameterMemory& memory,
                      const ParameterState& state, double learning_rate, float gradient_factor) {
  ParameterUpdate update;
  update.parameter = memory.parameter;
  update.gradient = memory.gradient;
  update.state0 = memory.state0;
  update.state1 = memory.state1;
  update.elements = memory.elements;
  update.step = state.updates + 1;
  update.learning_rate = learning_rate * state.learning_rate_scale;
  update.weight_decay = state.weight_decay;
  update.gradient_factor = gradient_factor;
  optimizer.update(update);
}

float* combine_uses(std::span<float* const> accumulators, const std::vector<bool>& touched,
                    std::int64_t elements) {
  float* sum = nullptr;
  for (std::size_t use = 0; use < accumulators.size(); ++use) {
    if (!touched[use]) continue;
    if (sum == nullptr) {
      sum = accumulators[use];
    } else {
      add_into(sum, accumulators[use], elements);
    }
  }
  return sum;
}

}  // namespace hydra
