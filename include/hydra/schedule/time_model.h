#pragma once

#include <cstddef>
#include <vector>

#include "hydra/core/clock.h"

namespace hydra {

/// Predicts the compute time of each unit of a job's step: the plan's figure at first, then an
/// exponentially weighted mean of what was measured.
/// Thread safety: thread-compatible.
class TimeModel {
 public:
  explicit TimeModel(const std::vector<Nanoseconds>& predictions);

  Nanoseconds predict(std::size_t unit) const;
  /// Takes in a measured time; the first one replaces the prediction.
  void observe(std::size_t unit, Nanoseconds measured);

 private:
  struct Entry {
    Nanoseconds mean;
    bool measured = false;
  };
  std::vector<Entry> entries_;
};

}  // namespace hydra
