#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hydra/engine/job_options.h"

namespace hydra::testing {

/// What a plain in-memory training run gives.
struct PlainResult {
  std::vector<double> losses;          ///< of each step, before its update
  std::vector<double> gradient_norms;  ///< of each step; 0 as in StepMetrics
  Weights weights;                     ///< parameters and buffers after the last step
};

/// Trains a job the ordinary way: all layers in memory, one autograd graph per micro-batch, one
/// update per parameter and step. The oracle that the engine must equal bit for bit; uses the
/// same layers and optimizer arithmetic as the engine and none of the engine's code.
PlainResult plain_loop(const JobOptions& options);

/// Returns the SHA-256 over all parameters' bytes in order (buffers are not part of it): the run's
/// fingerprint.
std::string fingerprint(const Weights& weights, const Model& model);

}  // namespace hydra::testing
