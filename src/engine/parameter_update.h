#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hydra/optim/optimizer.h"

namespace hydra {

/// How one parameter is trained, and how often it has been.
struct ParameterState {
  double learning_rate_scale = 1.0;
  double weight_decay = 0.0;
  std::int64_t updates = 0;
};

/// The memory of one parameter's update, on whichever tier it is done.
struct ParameterMemory {
  float* parameter = nullptr;
  float* gradient = nullptr;
  float* state0 = nullptr;
  float* state1 = nullptr;
  std::int64_t elements = 0;
};

/// Updates one parameter with the step's rate and factor; `state.updates` counts those before it.
void update_parameter(const Optimizer& optimizer, const ParameterMemory& memory,
                      const ParameterState& state, double learning_rate, float gradient_factor);

/// Adds up the accumulators of a tied parameter's touched uses, in the order of uses, into the
/// first touched one, and returns that one; null when no use was touched.
float* combine_uses(std::span<float* const> accumulators, const std::vector<bool>& touched,
                    std::int64_t elements);

}  // namespace hydra
