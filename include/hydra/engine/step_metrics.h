#pragma once

#include <cstdint>

#include "hydra/core/clock.h"

namespace hydra {

/// What one finished step gave.
struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0;  ///< of the mini-batch, before the step's update
  double learning_rate = 0;
  /// Before clipping, and after JobCallbacks::on_gradients; 0 when the job has neither.
  double gradient_norm = 0;
  std::int64_t tokens = 0;
  Nanoseconds end{0};  ///< since the runtime's start
};

}  // namespace hydra
