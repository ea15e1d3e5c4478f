#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "hydra/optim/learning_rate.h"

namespace hydra {

/// The learning rate of each step: the schedule's, or what a callback has set from a step on.
///
/// Asked for steps that are at most one before the latest change. Confined to the coordinator.
class StepRates {
 public:
  explicit StepRates(LearningRateSchedule schedule) : schedule_(schedule) {}

  double at(std::int64_t step) const {
    for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
      if (change->first_step > step) continue;
      return change->rate.value_or(schedule_.at(step));
    }
    return schedule_.at(step);
  }

  /// From `first_step` on: `rate`, or the schedule's where there is none.
  void change(std::int64_t first_step, std::optional<double> rate) {
    // Updates of the step before may still be due; nothing older is asked for again.
    if (changes_.size() > 1) changes_.erase(changes_.begin());
    changes_.push_back({first_step, rate});
  }

 private:
  struct Change {
    std::int64_t first_step;
    std::optional<double> rate;
  };

  LearningRateSchedule schedule_;
  std::vector<Change> changes_;
};

}  // namespace hydra
