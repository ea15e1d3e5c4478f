#include "hydra/model/layer_context.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hydra/core/error.h"
#include "hydra/model/layer.h"

namespace hydra {
namespace {

const SideInputs kNoSide;

at::Tensor draw(CallIdentity identity) {
  LayerContext context(identity, Mode::kTrain, 1.0, kNoSide);
  return at::empty({64}).uniform_(0, 1, context.generator());
}

TEST(LayerContextTest, TheSameCallDrawsTheSameNumbers) {
  EXPECT_TRUE(at::equal(draw({1, 2, 3, 4}), draw({1, 2, 3, 4})));
}

TEST(LayerContextTest, EveryPartOfTheIdentityMatters) {
  const at::Tensor reference = draw({1, 2, 3, 4});
  EXPECT_FALSE(at::equal(reference, draw({9, 2, 3, 4})));
  EXPECT_FALSE(at::equal(reference, draw({1, 9, 3, 4})));
  EXPECT_FALSE(at::equal(reference, draw({1, 2, 9, 4})));
  EXPECT_FALSE(at::equal(reference, draw({1, 2, 3, 9})));
  EXPECT_FALSE(at::equal(reference, draw({1, 3, 2, 4})));
}

TEST(LayerContextTest, OneCallHasOneGeneratorThatGoesOn) {
  LayerContext context({1, 2, 3, 4}, Mode::kTrain, 1.0, kNoSide);
  const at::Tensor first = at::empty({8}).uniform_(0, 1, context.generator());
  const at::Tensor second = at::empty({8}).uniform_(0, 1, context.generator());
  EXPECT_FALSE(at::equal(first, second));
}

TEST(LayerContextTest, TellsWhatItWasMadeOf) {
  const LayerContext context({1, 2, 3, 4}, Mode::kEvaluate, 5.0, kNoSide);
  EXPECT_EQ(context.step(), 2);
  EXPECT_EQ(context.micro_batch(), 3);
  EXPECT_EQ(context.layer_use(), 4);
  EXPECT_EQ(context.loss_denominator(), 5.0);
  EXPECT_FALSE(context.training());
}

TEST(LayerContextTest, AMissingSideInputIsRefusedWithTheNamesThatAreThere) {
  const SideInputs side = {{"targets", at::ones({2})}, {"mask", at::ones({3})}};
  const LayerContext context({}, Mode::kTrain, 1.0, side);
  EXPECT_TRUE(context.has_side("mask"));
  EXPECT_FALSE(context.has_side("labels"));
  EXPECT_EQ(context.side("targets").numel(), 2);
  try {
    context.side("labels");
    FAIL() << "not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("\"labels\""));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("targets, mask"));
  }
}

}  // namespace
}  // namespace hydra
