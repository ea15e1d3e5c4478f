#include "hydra/testing/torch_gpt2.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/normalization.h>
#include <torch/types.h>

namespace hydra::testing {

namespace F = torch::nn::functional;

TorchGpt2::TorchGpt2(const Gpt2Options& options, const Weights& initial) : options_(options) {
  for (const auto& [name, value] : initial) {
    parameters_[name] = value.clone().requires_grad_(true);
  }
}

at::Tensor TorchGpt2::normed(const at::Tensor& x, const std::string& name) const {
  return F::layer_norm(x, F::LayerNormFuncOptions({x.size(-1)})
                              .weight(parameters_.at(name + ".weight"))
                              .bias(parameters_.at(name + ".bias"))
                              .eps(options_.epsilon));
}

at::Tensor TorchGpt2::projected(const at::Tensor& x, const std::string& name) const {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::Tensor& weight = parameters_.at(name + ".weight");
  return torch::addmm(parameters_.at(name + ".bias"), rows, weight)
      .view({x.size(0), x.size(1), weight.size(1)});
}

at::Tensor TorchGpt2::attended(const at::Tensor& qkv) const {
  const auto split =
      qkv.view({qkv.size(0), qkv.size(1), 3, options_.heads, -1}).permute({2, 0, 3, 1, 4});
  return torch::scaled_dot_product_attention(split[0], split[1], split[2], {}, options_.dropout,
                                             /*is_causal=*/true)
      .transpose(1, 2)
      .flatten(2);
}

at::Tensor TorchGpt2::dropped(const at::Tensor& x) const {
  return options_.dropout > 0 ? torch::dropout(x, options_.dropout, /*train=*/true) : x;
}

at::Tensor TorchGpt2::loss(const Batch& batch) const {
  const at::Tensor tokens = batch.inputs[0];
  const at::Tensor& embedding = parameters_.at("embedding.wte.weight");
  at::Tensor x = dropped(torch::embedding(embedding, tokens) +
                         parameters_.at("embedding.wpe.weight").slice(0, 0, tokens.size(1)));
  for (std::int64_t i = 0; i < options_.layers; ++i) {
    const std::string block = "block" + std::to_string(i);
    const at::Tensor qkv = projected(normed(x, block + ".ln_1"), block + ".attn.c_attn");
    x = x + dropped(projected(attended(qkv), block + ".attn.c_proj"));
    const at::Tensor inner = projected(normed(x, block + ".ln_2"), block + ".mlp.c_fc");
    x = x + dropped(projected(torch::gelu(inner, "tanh"), block + ".mlp.c_proj"));
  }
  const at::Tensor logits = torch::matmul(normed(x, "head.ln_f"), embedding.t());
  const at::Tensor sum =
      F::cross_entropy(logits.flatten(0, 1), batch.side[0].second.flatten(),
                       F::CrossEntropyFuncOptions().ignore_index(-100).reduction(torch::kSum));
  return sum / batch.loss_denominator;
}

}  // namespace hydra::testing
