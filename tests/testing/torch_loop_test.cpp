// Holds the plain loop to an ordinary LibTorch program that shares nothing with it but the initial
// weights and the data.

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "hydra/data/batch.h"
#include "hydra/model/layer.h"
#include "hydra/model/schema.h"
#include "hydra/testing/plain_loop.h"
#include "hydra/testing/small_models.h"
#include "hydra/testing/torch_gpt2.h"

namespace hydra::testing {
namespace {

struct TorchResult {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;
};

TorchResult torch_loop(const JobOptions& job, const Gpt2Options& options, const Weights& initial) {
  const TorchGpt2 model(options, initial);
  TorchResult result;
  std::vector<at::Tensor> list;
  for (const auto& [name, parameter] : model.parameters()) list.push_back(parameter);
  const auto& adamw = std::get<AdamWOptions>(job.optimizer);
  torch::optim::AdamW optimizer(list, torch::optim::AdamWOptions(job.schedule.peak)
                                          .betas({adamw.beta1, adamw.beta2})
                                          .eps(adamw.epsilon)
                                          .weight_decay(adamw.weight_decay));
  for (std::int64_t step = 0; step < job.max_steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model.loss(job.data->batch(step));
    loss.backward();
    result.losses.push_back(loss.item<float>());
    if (job.max_gradient_norm) {
      result.norms.push_back(torch::nn::utils::clip_grad_norm_(list, *job.max_gradient_norm));
    }
    optimizer.step();
  }
  result.parameters = model.parameters();
  return result;
}

void expect_close_to_torch(std::optional<double> max_gradient_norm) {
  Gpt2Options options = tiny_gpt2_options();
  options.dropout = 0.0;  // its random numbers are Hydra's own
  JobOptions job = small_job("gpt2", 11, 20);
  job.model = make_gpt2(options);
  job.max_gradient_norm = max_gradient_norm;
  // Some gradients, the keys' bias for one, are zero but for rounding; with an epsilon far above
  // that noise AdamW does not blow it up to steps of the full learning rate.
  job.optimizer = AdamWOptions{.epsilon = 1e-5};
  const PlainResult plain = plain_loop(job);
  JobOptions start = job;
  start.max_steps = 0;
  const TorchResult torch = torch_loop(job, options, plain_loop(start).weights);
  for (std::size_t step = 0; step < plain.losses.size(); ++step) {
    EXPECT_NEAR(plain.losses[step], torch.losses[step], 2e-5 * torch.losses[step]) << step;
    if (max_gradient_norm) {
      EXPECT_NEAR(plain.gradient_norms[step], torch.norms[step], 1e-4 * torch.norms[step]) << step;
    }
  }
  // fp32 sums in another order (micro-batches, chunks, row blocks) leave about 1e-7 in a gradient
  // of about 1e-2; AdamW divides by its size, so a step of 1e-3 keeps about 1e-5 of it, 20 times
  // over.
  for (const auto& [name, value] : plain.weights) {
    EXPECT_LT((value - torch.parameters.at(name)).abs().max().item<float>(), 2e-5F) << name;
  }
}

TEST(TorchLoopTest, PlainLoopIsCloseToOrdinaryLibTorch) { expect_close_to_torch(std::nullopt); }

TEST(TorchLoopTest, PlainLoopIsCloseToOrdinaryLibTorchWithClipping) { expect_close_to_torch(0.05); }

/// Trains a job's own layers with LibTorch's AdamW, which has a group for each parameter.
std::map<std::string, at::Tensor> with_torch_adamw(const JobOptions& job) {
  const ModelSchema schema = describe_model(*job.model);
  std::vector<std::shared_ptr<Layer>> layers;
  std::map<std::string, at::Tensor> parameters;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const auto& adamw = std::get<AdamWOptions>(job.optimizer);
  for (std::size_t i = 0; i < schema.layers.size(); ++i) {
    layers.push_back(make_layer(*job.model, static_cast<std::int64_t>(i), job.seed));
    std::size_t p = 0;
    for (const at::Tensor& parameter : layers.back()->parameters()) {
      const std::string& name = schema.layers[i].parameters.at(p++).full_name;
      const ParameterGroup group = group_of(job.groups, name);
      groups.emplace_back(
          std::vector<at::Tensor>{parameter},
          std::make_unique<torch::optim::AdamWOptions>(
              torch::optim::AdamWOptions(job.schedule.peak * group.learning_rate_scale)
                  .betas({adamw.beta1, adamw.beta2})
                  .eps(adamw.epsilon)
                  .weight_decay(group.weight_decay.value_or(adamw.weight_decay))));
      parameters.emplace(name, parameter);
    }
  }
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions());
  for (std::int64_t step = 0; step < job.max_steps; ++step) {
    optimizer.zero_grad();
    const Batch batch = job.data->batch(step);
    const std::int64_t size = job.micro_batch_size;
    for (std::int64_t begin = 0, index = 0; begin < batch.rows; begin += size, ++index) {
      const Batch rows = rows_of(batch, begin, std::min(batch.rows, begin + size));
      Tensors tensors = rows.inputs;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        LayerContext context({job.seed, step, index, static_cast<std::int64_t>(i)}, Mode::kTrain,
                             batch.loss_denominator, rows.side);
        tensors = layers[i]->forward(tensors, context);
      }
      tensors.at(0).backward();
    }
    optimizer.step();
  }
  return parameters;
}

// The gradients are the same bits at first; AdamW's own roundings leave 1e-7 of a step of 1e-3, ten
// times over, and what the next gradients make of them.
void expect_close_to_torch_adamw(const JobOptions& job) {
  const auto expected = with_torch_adamw(job);
  for (const auto& [name, value] : plain_loop(job).weights) {
    EXPECT_LT((value - expected.at(name)).abs().max().item<float>(), 2e-6F) << name;
  }
}

TEST(TorchLoopTest, GroupsOfTheirOwnRateAndDecayTrainAsInLibTorch) {
  JobOptions job = small_job("mlp", 12, 10);
  job.optimizer = AdamWOptions{.epsilon = 1e-5};
  job.groups = {{"*.bias", 1.0, 0.0}, {"*.weight", 0.1, 0.1}};
  expect_close_to_torch_adamw(job);
}

TEST(TorchLoopTest, AParameterThatMissesStepsCountsItsOwnAsInLibTorch) {
  JobOptions job = small_job("unused_branch", 13, 10);
  job.optimizer = AdamWOptions{.epsilon = 1e-5};
  expect_close_to_torch_adamw(job);
}

}  // namespace
}  // namespace hydra::testing
