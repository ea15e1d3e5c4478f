#include "hydra/models/dropout.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "hydra/core/error.h"

namespace hydra {
namespace {

const SideInputs kNoSide;

LayerContext call(std::int64_t micro_batch, std::int64_t step = 0, Mode mode = Mode::kTrain) {
  return LayerContext({1, step, micro_batch, 2}, mode, 1.0, kNoSide);
}

at::Tensor mask_of(double probability, LayerContext context, std::int64_t elements = 1 << 20) {
  return dropout(torch::ones({elements}), probability, context);
}

TEST(DropoutTest, DropsItsShareAndScalesTheRest) {
  for (const double p : {0.1, 0.5, 0.9}) {
    SCOPED_TRACE(p);
    const at::Tensor y = mask_of(p, call(0));
    const double dropped = (y == 0).to(torch::kDouble).mean().item<double>();
    // Five standard deviations of a binomial share.
    EXPECT_NEAR(dropped, p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(y.numel())));
    const at::Tensor kept = y.masked_select(y != 0);
    EXPECT_TRUE(torch::equal(kept, torch::full_like(kept, 1.0 / (1.0 - p))));
  }
}

TEST(DropoutTest, NeighboursAndRowsAreIndependent) {
  const at::Tensor dropped = (mask_of(0.5, call(0)) == 0).to(torch::kDouble) - 0.5;
  // Correlations of neighbours, of a hash round's distance, and of whole streams; the expected
  // value is 0 and the standard deviation 0.25 / 1024.
  for (const std::int64_t lag : {1, 2, 3, 16, 64, 384, 4096, 8192, 65536}) {
    SCOPED_TRACE(lag);
    const at::Tensor products = dropped.slice(0, lag) * dropped.slice(0, 0, -lag);
    EXPECT_NEAR(products.mean().item<double>(), 0.0, 5 * 0.25 / 1024.0);
  }
}

TEST(DropoutTest, SameCallGivesTheSameMask) {
  EXPECT_TRUE(torch::equal(mask_of(0.3, call(4)), mask_of(0.3, call(4))));
}

TEST(DropoutTest, OtherCallsGiveOtherMasks) {
  const at::Tensor mask = mask_of(0.5, call(0));
  for (LayerContext context : {call(1), call(0, 1)}) {
    const double equal = (mask == mask_of(0.5, context)).to(torch::kDouble).mean().item<double>();
    EXPECT_NEAR(equal, 0.5, 0.005);
  }
}

TEST(DropoutTest, SecondDropoutOfACallHasAnotherMask) {
  LayerContext context = call(0);
  const at::Tensor ones = torch::ones({4096});
  const at::Tensor first = dropout(ones, 0.5, context);
  EXPECT_FALSE(torch::equal(first, dropout(ones, 0.5, context)));
}

TEST(DropoutTest, GradientHasTheMaskOfTheForward) {
  LayerContext context = call(0);
  const at::Tensor x = torch::randn({3, 5000}).requires_grad_(true);
  const at::Tensor y = dropout(x, 0.4, context);
  // The gradient of a sum is expanded, not contiguous.
  y.sum().backward();
  LayerContext again = call(0);
  EXPECT_TRUE(torch::equal(x.grad(), dropout(torch::ones({3, 5000}), 0.4, again)));
}

TEST(DropoutTest, MaskDoesNotDependOnThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = mask_of(0.3, call(0));
  at::set_num_threads(2);
  const at::Tensor two = mask_of(0.3, call(0));
  at::set_num_threads(threads);
  EXPECT_TRUE(torch::equal(one, two));
}

TEST(DropoutTest, DroppedNanIsZero) {
  LayerContext context = call(0);
  const at::Tensor y =
      dropout(torch::full({1000}, std::numeric_limits<float>::quiet_NaN()), 0.5, context);
  EXPECT_GT((y == 0).sum().item<std::int64_t>(), 400);
}

TEST(DropoutTest, IsTheIdentityInEvaluationAndAtZero) {
  const at::Tensor x = torch::randn({10});
  LayerContext evaluation = call(0, 0, Mode::kEvaluate);
  EXPECT_TRUE(dropout(x, 0.5, evaluation).is_same(x));
  LayerContext training = call(0);
  EXPECT_TRUE(dropout(x, 0.0, training).is_same(x));
}

TEST(DropoutTest, ImpossibleProbabilitiesAreRefused) {
  for (const double p : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THROW(mask_of(p, call(0), 4), InvalidArgument);
  }
}

TEST(DropoutLayerTest, DropsEveryTensor) {
  LayerContext context = call(0);
  DropoutLayer layer(0.5);
  const Tensors out = layer.forward({torch::ones({1000}), torch::ones({1000})}, context);
  ASSERT_EQ(out.size(), 2U);
  for (const at::Tensor& y : out) EXPECT_GT((y == 0).sum().item<std::int64_t>(), 400);
}

}  // namespace
}  // namespace hydra
