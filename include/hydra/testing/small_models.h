#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hydra/engine/job_options.h"
#include "hydra/model/layer_context.h"
#include "hydra/model/model.h"
#include "hydra/models/gpt2.h"

namespace hydra::testing {

/// A GPT-2 of a few thousand parameters with dropout on: 2 layers, width 16, 2 heads, vocabulary
/// 64, context 8, head chunks of 8 tokens. Change what a test is about.
Gpt2Options tiny_gpt2_options();

/// Three linear layers with dropout for RandomRegression's default shapes (8 in, 4 out).
std::shared_ptr<Model> tiny_mlp();

/// Two stages with batch norm for RandomImages of 3 x 16 x 16 and 10 classes.
std::shared_ptr<Model> tiny_conv_net();

/// Layers that pass two tensors on, a stream and what will be added to it, for RandomRegression's
/// default shapes: "split", "mix0" .. "mix2", "join", "loss".
std::shared_ptr<Model> two_tensor_model();

/// As the MLP's shapes, with a layer "branch" whose parameter "odd" is unused on odd steps.
std::shared_ptr<Model> unused_branch_model();

/// As the MLP's shapes, with a layer "fault" that throws std::runtime_error("planted fault") in
/// training at `step`.
std::shared_ptr<Model> throwing_model(std::int64_t step);

/// As the MLP's shapes, with a layer "hook" that passes its input on and calls `hook` before each
/// forward in training, the pilot's (of step 0) included, on the device's worker.
std::shared_ptr<Model> hooked_model(std::function<void(LayerContext& context)> hook);

/// As the MLP's shapes, with a loss that is NaN at `step`.
std::shared_ptr<Model> nan_model(std::int64_t step);

/// A job of a model of this file with fitting random data, AdamW at a constant rate of 1e-3,
/// clipping off and a micro-batch of 2 rows. `name` is one of small_job_names().
JobOptions small_job(const std::string& name, std::uint64_t seed, std::int64_t max_steps);

/// "gpt2", "mlp", "conv_net", "two_tensor", "unused_branch".
const std::vector<std::string>& small_job_names();

}  // namespace hydra::testing
