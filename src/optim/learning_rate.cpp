#include "hydra/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "hydra/core/error.h"

namespace hydra {

double LearningRateSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (shape == Shape::kConstant) return peak;
  const auto length = static_cast<double>(std::max<std::int64_t>(1, max_steps - warmup_steps));
  const double progress = std::clamp(static_cast<double>(step - warmup_steps) / length, 0.0, 1.0);
  const double remaining =
      shape == Shape::kLinear ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return peak * (final_fraction + (1 - final_fraction) * remaining);
}

void LearningRateSchedule::validate() const {
  const auto refuse = [](const std::string& what) { throw InvalidArgument(what); };
  if (!(std::isfinite(peak) && peak >= 0)) {
    refuse("the learning rate is " + std::to_string(peak) + ", must be 0 or more and finite");
  }
  if (warmup_steps < 0) {
    refuse("warmup_steps is " + std::to_string(warmup_steps) + ", must be 0 or more");
  }
  if (!(final_fraction >= 0 && final_fraction <= 1)) {
    refuse("final_fraction is " + std::to_string(final_fraction) + ", must lie in [0, 1]");
  }
  if (shape != Shape::kConstant && max_steps <= warmup_steps) {
    refuse("a decaying learning rate needs max_steps (" + std::to_string(max_steps) +
           ") beyond warmup_steps (" + std::to_string(warmup_steps) + ")");
  }
}

LearningRateSchedule::Shape parse_schedule_shape(std::string_view name) {
  if (name == "constant") return LearningRateSchedule::Shape::kConstant;
  if (name == "linear") return LearningRateSchedule::Shape::kLinear;
  if (name == "cosine") return LearningRateSchedule::Shape::kCosine;
  throw InvalidArgument("there is no schedule \"" + std::string(name) +
                        "\": choose constant, linear or cosine");
}

}  // namespace hydra
