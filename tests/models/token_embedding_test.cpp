#include "hydra/models/token_embedding.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "hydra/core/error.h"

namespace hydra {
namespace {

struct Embedding {
  at::Tensor tokens, words, positions, output_gradient;
};

Embedding random_embedding() {
  torch::manual_seed(3);
  return {torch::randint(0, 11, {3, 5}, torch::kLong), torch::randn({11, 6}).requires_grad_(true),
          torch::randn({8, 6}).requires_grad_(true), torch::randn({3, 5, 6})};
}

TEST(TokenEmbeddingTest, ForwardAndGradientsAreTorchsBits) {
  const Embedding own = random_embedding();
  const Embedding torchs = random_embedding();
  const at::Tensor got = embed_tokens(own.tokens, own.words, own.positions);
  const at::Tensor expected =
      torch::embedding(torchs.words, torchs.tokens) + torchs.positions.slice(0, 0, 5);
  EXPECT_TRUE(torch::equal(got, expected));
  got.backward(own.output_gradient);
  expected.backward(torchs.output_gradient);
  EXPECT_TRUE(torch::equal(own.words.grad(), torchs.words.grad()));
  // Torch may add the batch up in another order.
  EXPECT_TRUE(torch::allclose(own.positions.grad(), torchs.positions.grad(), 0.0, 1e-6));
}

TEST(TokenEmbeddingTest, AddsInPlaceAndBumpsTheVersion) {
  const Embedding e = random_embedding();
  const at::Tensor flat = torch::zeros({11 * 6});
  e.words.mutable_grad() = flat.view({11, 6});
  const auto before = e.words.grad()._version();
  embed_tokens(e.tokens, e.words, e.positions).backward(e.output_gradient);
  EXPECT_NE(e.words.grad()._version(), before);
  EXPECT_EQ(e.words.grad().data_ptr<float>(), flat.data_ptr<float>());
  EXPECT_GT(flat.abs().sum().item<float>(), 0.0F);
}

TEST(TokenEmbeddingTest, FrozenWeightGetsNoGradient) {
  const Embedding e = random_embedding();
  e.words.requires_grad_(false);
  embed_tokens(e.tokens, e.words, e.positions).backward(e.output_gradient);
  EXPECT_FALSE(e.words.grad().defined());
  EXPECT_TRUE(e.positions.grad().defined());
}

TEST(TokenEmbeddingTest, TokensOutsideTheVocabularyOrTheContextAreRefused) {
  const Embedding e = random_embedding();
  EXPECT_THROW(embed_tokens(e.tokens + 11, e.words, e.positions), InvalidArgument);
  EXPECT_THROW(embed_tokens(e.tokens - 11, e.words, e.positions), InvalidArgument);
  EXPECT_THROW(embed_tokens(e.tokens.to(torch::kFloat), e.words, e.positions), InvalidArgument);
  EXPECT_THROW(embed_tokens(torch::zeros({1, 9}, torch::kLong), e.words, e.positions),
               InvalidArgument);
}

}  // namespace
}  // namespace hydra
