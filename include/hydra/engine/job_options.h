#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hydra/data/data_source.h"
#include "hydra/engine/job_callbacks.h"
#include "hydra/model/model.h"
#include "hydra/optim/learning_rate.h"
#include "hydra/optim/optimizer.h"

namespace hydra {

/// Parameters and buffers by full name, in model order; tied parameters once, under their owner.
/// Tensors are contiguous and in host memory.
using Weights = std::vector<std::pair<std::string, at::Tensor>>;

/// One model in training: everything that its result is a function of.
///
/// The parameters after k steps are the same bits whatever the devices, budgets, cuts, policy and
/// other jobs are, for fixed options here and a fixed number of threads per device.
struct JobOptions {
  std::string name{};  ///< for people; any UTF-8, not empty; numbered when it has been used before
  std::shared_ptr<const Model> model{};
  std::shared_ptr<DataSource> data{};
  OptimizerOptions optimizer = AdamWOptions{};
  std::vector<ParameterGroup> groups{};  ///< first match wins
  LearningRateSchedule schedule{};
  std::int64_t max_steps = 1;
  /// Rows of a mini-batch that go through a layer at once; 0 takes the whole mini-batch. Smaller
  /// needs less device memory. The last micro-batch of a mini-batch may be smaller.
  std::int64_t micro_batch_size = 0;
  std::uint64_t seed = 0;  ///< of initial weights and dropout
  /// Clips the global norm, which must be at least 1e-12; updates are then deferred. Unset, or
  /// infinite: no clipping.
  std::optional<double> max_gradient_norm{};
  /// Replaces the factories' values for the names that it holds.
  std::shared_ptr<const Weights> initial_weights{};
  /// Called beside the steps; null: none.
  std::shared_ptr<JobCallbacks> callbacks{};
  std::int64_t priority = 0;  ///< for policies that use it; larger is more urgent
};

}  // namespace hydra
