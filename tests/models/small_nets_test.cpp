#include <gtest/gtest.h>
#include <torch/types.h>

#include "hydra/core/error.h"
#include "hydra/model/layer.h"
#include "hydra/models/conv_net.h"
#include "hydra/models/mlp.h"
#include "hydra/testing/plain_loop.h"
#include "hydra/testing/small_models.h"

namespace hydra {
namespace {

void expect_loss_falls(const std::string& name, std::int64_t steps) {
  JobOptions job = testing::small_job(name, 2, steps);
  job.schedule.peak = 1e-2;
  const auto losses = testing::plain_loop(job).losses;
  EXPECT_LT(losses.back(), 0.8 * losses.front()) << name;
}

TEST(MlpTest, LossFalls) { expect_loss_falls("mlp", 100); }

TEST(MlpTest, ImpossibleOptionsAreRefused) {
  EXPECT_THROW(make_mlp({.widths = {4}}), InvalidArgument);
  EXPECT_THROW(make_mlp({.widths = {4, 0}}), InvalidArgument);
  EXPECT_THROW(make_mlp({.widths = {4, 2}, .dropout = 1.5}), InvalidArgument);
}

TEST(MlpTest, CrossEntropyIgnoresRowsWithoutTarget) {
  const auto model = make_mlp({.widths = {4, 3}, .loss = LossKind::kCrossEntropy});
  const auto loss = make_layer(*model, 1, 0);
  const at::Tensor logits = torch::randn({3, 3});
  const auto loss_of = [&](const at::Tensor& rows, std::vector<std::int64_t> targets) {
    const SideInputs side{{"targets", torch::tensor(targets)}};
    LayerContext context({0, 0, 0, 1}, Mode::kTrain, 2.0, side);
    return loss->forward({rows}, context)[0].item<float>();
  };
  EXPECT_EQ(loss_of(logits, {0, 2, -100}), loss_of(logits.slice(0, 0, 2), {0, 2}));
}

TEST(ConvNetTest, LossFalls) { expect_loss_falls("conv_net", 40); }

TEST(ConvNetTest, BatchNormHasItsThreeBuffers) {
  const auto stage = make_layer(*make_conv_net({}), 0, 0);
  EXPECT_EQ(stage->named_buffers().keys(),
            (std::vector<std::string>{"norm.running_mean", "norm.running_var",
                                      "norm.num_batches_tracked"}));
}

TEST(ConvNetTest, ImpossibleOptionsAreRefused) {
  EXPECT_THROW(make_conv_net({.image_size = 3}), InvalidArgument);
  EXPECT_THROW(make_conv_net({.channels = {4, 0}}), InvalidArgument);
  EXPECT_THROW(make_conv_net({.classes = 0}), InvalidArgument);
}

TEST(TwoTensorModelTest, LossFalls) { expect_loss_falls("two_tensor", 100); }

}  // namespace
}  // namespace hydra
