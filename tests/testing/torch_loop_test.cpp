// Holds the plain loop to an ordinary LibTorch program that shares nothing with it but the initial
// weights and the data.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

#include "hydra/testing/plain_loop.h"
#include "hydra/testing/small_models.h"

namespace hydra::testing {
namespace {

namespace F = torch::nn::functional;

using Parameters = std::map<std::string, at::Tensor>;

at::Tensor normed(const at::Tensor& x, const Parameters& p, const std::string& name) {
  return F::layer_norm(x, F::LayerNormFuncOptions({x.size(-1)})
                              .weight(p.at(name + ".weight"))
                              .bias(p.at(name + ".bias"))
                              .eps(1e-5));
}

at::Tensor projected(const at::Tensor& x, const Parameters& p, const std::string& name) {
  return torch::matmul(x, p.at(name + ".weight")) + p.at(name + ".bias");
}

at::Tensor attended(const at::Tensor& qkv, std::int64_t heads) {
  const auto split = qkv.view({qkv.size(0), qkv.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4});
  return torch::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, true)
      .transpose(1, 2)
      .flatten(2);
}

// GPT-2 as everybody writes it: one graph, full logits, torch's cross-entropy.
at::Tensor gpt2_loss(const Gpt2Options& options, const Parameters& p, const Batch& batch) {
  const at::Tensor tokens = batch.inputs[0];
  at::Tensor x = torch::embedding(p.at("embedding.wte.weight"), tokens) +
                 p.at("embedding.wpe.weight").slice(0, 0, tokens.size(1));
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::string block = "block" + std::to_string(i);
    const at::Tensor qkv = projected(normed(x, p, block + ".ln_1"), p, block + ".attn.c_attn");
    x = x + projected(attended(qkv, options.heads), p, block + ".attn.c_proj");
    const at::Tensor inner = projected(normed(x, p, block + ".ln_2"), p, block + ".mlp.c_fc");
    x = x + projected(torch::gelu(inner, "tanh"), p, block + ".mlp.c_proj");
  }
  const at::Tensor logits =
      torch::matmul(normed(x, p, "head.ln_f"), p.at("embedding.wte.weight").t());
  return F::cross_entropy(logits.flatten(0, 1), batch.side[0].second.flatten());
}

struct TorchResult {
  std::vector<double> losses;
  std::vector<double> norms;
  Parameters parameters;
};

TorchResult torch_loop(const JobOptions& job, const Gpt2Options& options, const Weights& initial) {
  TorchResult result;
  std::vector<at::Tensor> list;
  for (const auto& [name, value] : initial) {
    result.parameters[name] = value.clone().requires_grad_(true);
    list.push_back(result.parameters[name]);
  }
  const auto& adamw = std::get<AdamWOptions>(job.optimizer);
  torch::optim::AdamW optimizer(list, torch::optim::AdamWOptions(job.schedule.peak)
                                          .betas({adamw.beta1, adamw.beta2})
                                          .eps(adamw.epsilon)
                                          .weight_decay(adamw.weight_decay));
  for (std::int64_t step = 0; step < job.max_steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = gpt2_loss(options, result.parameters, job.data->batch(step));
    loss.backward();
    result.losses.push_back(loss.item<float>());
    if (job.max_gradient_norm) {
      result.norms.push_back(torch::nn::utils::clip_grad_norm_(list, *job.max_gradient_norm));
    }
    optimizer.step();
  }
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
