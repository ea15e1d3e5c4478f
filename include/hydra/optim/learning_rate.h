#pragma once

#include <cstdint>
#include <string_view>

namespace hydra {

/// A learning rate as a function of the step: linear warm-up, then constant, or linear or cosine
/// decay to `final_fraction` of the peak at `max_steps`.
///
/// With w = warmup_steps, f = final_fraction and p = (step - w) / (max_steps - w), step from 0:
///   step < w:  peak * (step + 1) / w
///   constant:  peak
///   linear:    peak * (f + (1 - f) * (1 - p))
///   cosine:    peak * (f + (1 - f) * (1 + cos(pi * p)) / 2)
/// Thread safety: immutable.
struct LearningRateSchedule {
  enum class Shape { kConstant, kLinear, kCosine };

  Shape shape = Shape::kConstant;
  double peak = 1e-3;  ///< the rate after warm-up
  std::int64_t warmup_steps = 0;
  std::int64_t max_steps = 0;  ///< where decay ends; needed by kLinear and kCosine
  double final_fraction = 0.0;

  /// Returns the rate of step `step` (0-based).
  double at(std::int64_t step) const;
  /// Errors: InvalidArgument for negative or non-finite numbers, and for a decaying shape whose
  /// warm-up does not end before max_steps.
  void validate() const;
};

/// Reads "constant", "linear", "cosine". Errors: InvalidArgument lists the names.
LearningRateSchedule::Shape parse_schedule_shape(std::string_view name);

}  // namespace hydra
