#include "hydra/models/chunked_head.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "hydra/core/error.h"

namespace hydra {
namespace {

constexpr std::int64_t kTokens = 37;
constexpr std::int64_t kChannels = 24;
constexpr std::int64_t kVocabulary = 101;
constexpr double kDenominator = 31.0;

struct Head {
  at::Tensor hidden, weight, targets;
};

Head random_head() {
  torch::manual_seed(7);
  Head head;
  head.hidden = torch::randn({kTokens, kChannels});
  head.weight = torch::randn({kVocabulary, kChannels}) * 0.3;
  head.targets = torch::randint(0, kVocabulary, {kTokens}, torch::kLong);
  for (const std::int64_t ignored : {0, 5, 36}) head.targets[ignored] = -100;
  return head;
}

struct Gradients {
  at::Tensor loss, hidden, weight;
};

// The form that everybody writes: all logits at once.
Gradients plain(const Head& head) {
  const at::Tensor hidden = head.hidden.clone().requires_grad_(true);
  const at::Tensor weight = head.weight.clone().requires_grad_(true);
  const at::Tensor log_probabilities = torch::log_softmax(torch::matmul(hidden, weight.t()), -1);
  const at::Tensor loss =
      torch::nll_loss(log_probabilities, head.targets, {}, at::Reduction::Sum, -100) / kDenominator;
  loss.backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

Gradients chunked(const Head& head, std::int64_t chunk_tokens) {
  const at::Tensor hidden = head.hidden.clone().requires_grad_(true);
  const at::Tensor weight = head.weight.clone().requires_grad_(true);
  const at::Tensor loss =
      chunked_cross_entropy(hidden, weight, head.targets, kDenominator, chunk_tokens);
  loss.backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

TEST(ChunkedHeadTest, HiddenGradientIsPlainFormsBitsInOneChunk) {
  const Head head = random_head();
  const Gradients expected = plain(head);
  const Gradients got = chunked(head, kTokens);
  EXPECT_TRUE(torch::equal(got.hidden, expected.hidden));
  // nll_loss adds up in fp32, the head in double.
  EXPECT_NEAR(got.loss.item<float>(), expected.loss.item<float>(), 1e-6);
  EXPECT_TRUE(torch::allclose(got.weight, expected.weight, 0.0, 1e-6));
}

TEST(ChunkedHeadTest, EveryChunkSizeGivesTheSameLossAndGradients) {
  const Head head = random_head();
  const Gradients expected = plain(head);
  for (const std::int64_t chunk : {1, 2, 7, 8, 16, 36, 37, 1000}) {
    SCOPED_TRACE(chunk);
    const Gradients got = chunked(head, chunk);
    // Matrix products of other shapes may round differently.
    EXPECT_NEAR(got.loss.item<float>(), expected.loss.item<float>(), 2e-6);
    EXPECT_TRUE(torch::allclose(got.hidden, expected.hidden, 0.0, 1e-6));
    EXPECT_TRUE(torch::allclose(got.weight, expected.weight, 0.0, 1e-6));
  }
}

TEST(ChunkedHeadTest, WithoutRecordingGivesTheSameLossAndNoGradient) {
  const Head head = random_head();
  const Gradients expected = chunked(head, 8);
  const at::Tensor weight = head.weight.clone().requires_grad_(true);
  const torch::NoGradGuard no_grad;
  const at::Tensor loss = chunked_cross_entropy(head.hidden, weight, head.targets, kDenominator, 8);
  EXPECT_TRUE(torch::equal(loss, expected.loss));
  EXPECT_FALSE(weight.grad().defined());
}

TEST(ChunkedHeadTest, AddsToTheGradientThatIsThere) {
  const Head head = random_head();
  const Gradients once = chunked(head, 16);
  const at::Tensor hidden = head.hidden.clone().requires_grad_(true);
  const at::Tensor weight = head.weight.clone().requires_grad_(true);
  const at::Tensor flat = torch::ones({kVocabulary * kChannels + 3});
  weight.mutable_grad() = flat.narrow(0, 3, kVocabulary * kChannels).view_as(weight);
  const auto before = weight.grad()._version();
  chunked_cross_entropy(hidden, weight, head.targets, kDenominator, 16).backward();
  EXPECT_NE(weight.grad()._version(), before);
  EXPECT_EQ(weight.grad().data_ptr<float>(), flat.data_ptr<float>() + 3);
  EXPECT_TRUE(torch::allclose(weight.grad(), once.weight + 1.0, 0.0, 1e-6));
  EXPECT_TRUE(torch::equal(flat.narrow(0, 0, 3), torch::ones({3})));
}

TEST(ChunkedHeadTest, IgnoredTargetsAloneGiveZeroAndNoNan) {
  Head head = random_head();
  head.targets.fill_(-100);
  const Gradients got = chunked(head, 8);
  EXPECT_EQ(got.loss.item<float>(), 0.0F);
  EXPECT_TRUE(torch::equal(got.hidden, torch::zeros_like(got.hidden)));
  EXPECT_TRUE(torch::equal(got.weight, torch::zeros_like(got.weight)));
}

TEST(ChunkedHeadTest, FrozenWeightGetsNoGradient) {
  const Head head = random_head();
  const at::Tensor hidden = head.hidden.clone().requires_grad_(true);
  chunked_cross_entropy(hidden, head.weight, head.targets, kDenominator, 8).backward();
  EXPECT_FALSE(head.weight.grad().defined());
  EXPECT_TRUE(torch::equal(hidden.grad(), chunked(head, 8).hidden));
}

TEST(ChunkedHeadTest, HiddenWithoutGradientStillTrainsTheWeight) {
  const Head head = random_head();
  const at::Tensor weight = head.weight.clone().requires_grad_(true);
  chunked_cross_entropy(head.hidden, weight, head.targets, kDenominator, 8).backward();
  EXPECT_TRUE(torch::equal(weight.grad(), chunked(head, 8).weight));
}

TEST(ChunkedHeadTest, ScaledLossIsRefusedInBackward) {
  const Head head = random_head();
  const at::Tensor weight = head.weight.clone().requires_grad_(true);
  const at::Tensor loss =
      chunked_cross_entropy(head.hidden, weight, head.targets, kDenominator, 8) * 2.0;
  EXPECT_THROW(loss.backward(), Unsupported);
}

TEST(ChunkedHeadTest, TargetOutsideTheVocabularyIsRefused) {
  Head head = random_head();
  head.targets[3] = kVocabulary;
  EXPECT_THROW(chunked_cross_entropy(head.hidden, head.weight, head.targets, 1.0, 8),
               InvalidArgument);
  head.targets[3] = -1;
  EXPECT_THROW(chunked_cross_entropy(head.hidden, head.weight, head.targets, 1.0, 8),
               InvalidArgument);
}

}  // namespace
}  // namespace hydra
