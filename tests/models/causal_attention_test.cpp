#include "hydra/models/causal_attention.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "hydra/core/error.h"

namespace hydra {
namespace {

const SideInputs kNoSide;

LayerContext call() { return LayerContext({1, 0, 0, 2}, Mode::kTrain, 1.0, kNoSide); }

// The form of the textbook, on [B, H, T, T].
at::Tensor textbook(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& mask) {
  const std::int64_t tokens = qkv.size(1);
  const std::int64_t channels = qkv.size(2) / 3;
  const auto part = [&](std::int64_t which) {
    return qkv.narrow(2, which * channels, channels)
        .reshape({qkv.size(0), tokens, heads, channels / heads})
        .transpose(1, 2);
  };
  const double scale = 1.0 / std::sqrt(static_cast<double>(channels / heads));
  at::Tensor scores = torch::matmul(part(0), part(1).transpose(2, 3)) * scale;
  const at::Tensor future = torch::ones({tokens, tokens}, torch::kBool).triu(1);
  scores = scores.masked_fill(future, -INFINITY);
  const at::Tensor probabilities = torch::softmax(scores, -1) * mask;
  return torch::matmul(probabilities, part(2))
      .transpose(1, 2)
      .reshape({qkv.size(0), tokens, channels});
}

// Attention to one-hot values at zero queries shows the probabilities, and so the mask: C / H = T.
at::Tensor visible_mask(std::int64_t batch, std::int64_t heads, std::int64_t tokens, double p) {
  LayerContext context = call();
  at::Tensor qkv = torch::zeros({batch, tokens, 3, heads, tokens});
  qkv.select(2, 2).copy_(torch::eye(tokens).view({1, tokens, 1, tokens}));
  const at::Tensor y =
      causal_attention(qkv.view({batch, tokens, 3 * heads * tokens}), heads, p, context);
  const at::Tensor counts = torch::arange(1, tokens + 1).to(torch::kFloat).view({tokens, 1});
  return y.view({batch, tokens, heads, tokens}).transpose(1, 2) * counts;
}

void expect_textbook(std::int64_t tokens, std::int64_t heads, std::int64_t channels, double p) {
  torch::manual_seed(5);
  const at::Tensor mask =
      p > 0 ? visible_mask(2, heads, tokens, p) : torch::ones({2, heads, tokens, tokens});
  const at::Tensor own = torch::randn({2, tokens, 3 * channels}).requires_grad_(true);
  const at::Tensor reference = own.detach().to(torch::kDouble).requires_grad_(true);
  const at::Tensor gradient = torch::randn({2, tokens, channels});
  LayerContext context = call();
  const at::Tensor got = causal_attention(own, heads, p, context);
  const at::Tensor expected = textbook(reference, heads, mask.to(torch::kDouble));
  EXPECT_TRUE(torch::allclose(got.to(torch::kDouble), expected, 1e-5, 1e-5));
  got.backward(gradient);
  expected.backward(gradient.to(torch::kDouble));
  EXPECT_TRUE(torch::allclose(own.grad().to(torch::kDouble), reference.grad(), 1e-4, 2e-5));
}

TEST(CausalAttentionTest, EqualsTheTextbook) {
  expect_textbook(1, 1, 4, 0.0);
  expect_textbook(8, 2, 16, 0.0);
  expect_textbook(128, 3, 24, 0.0);
  expect_textbook(300, 2, 64, 0.0);  // several row blocks, the last one short
}

TEST(CausalAttentionTest, EqualsTheTextbookWithDropout) {
  expect_textbook(8, 2, 16, 0.2);
  expect_textbook(200, 2, 32, 0.2);
}

TEST(CausalAttentionTest, MaskDropsItsShare) {
  const std::int64_t tokens = 200;
  const at::Tensor mask = visible_mask(2, 2, tokens, 0.25);
  const at::Tensor past = torch::ones({tokens, tokens}, torch::kBool).tril();
  const at::Tensor seen = mask.masked_select(past);
  EXPECT_NEAR((seen == 0).to(torch::kDouble).mean().item<double>(), 0.25, 0.01);
  EXPECT_EQ((mask.masked_select(past.logical_not()) != 0).sum().item<std::int64_t>(), 0);
}

TEST(CausalAttentionTest, BitsDoNotDependOnTheMicroBatch) {
  torch::manual_seed(5);
  const at::Tensor qkv = torch::randn({4, 150, 48});
  LayerContext context = call();
  const at::Tensor whole = causal_attention(qkv, 2, 0.0, context);
  for (std::int64_t i = 0; i < 4; ++i) {
    const at::Tensor one = causal_attention(qkv.slice(0, i, i + 1), 2, 0.0, context);
    EXPECT_TRUE(torch::equal(one[0], whole[i]));
  }
}

TEST(CausalAttentionTest, SameCallGivesTheSameBits) {
  torch::manual_seed(5);
  const at::Tensor qkv = torch::randn({2, 150, 48});
  LayerContext first = call();
  LayerContext second = call();
  EXPECT_TRUE(
      torch::equal(causal_attention(qkv, 2, 0.3, first), causal_attention(qkv, 2, 0.3, second)));
}

TEST(CausalAttentionTest, ShapesThatDoNotFitAreRefused) {
  LayerContext context = call();
  EXPECT_THROW(causal_attention(torch::zeros({2, 3, 10}), 2, 0.0, context), InvalidArgument);
  EXPECT_THROW(causal_attention(torch::zeros({2, 12}), 2, 0.0, context), InvalidArgument);
}

}  // namespace
}  // namespace hydra
