// Holds the plain loop to an ordinary LibTorch program that shares nothing with it but the initial
// weights and the data.

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <map>
#include <string>

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

}  // namespace
}  // namespace hydra::testing
