#include "hydra/models/gpt2.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/model/layer.h"
#include "hydra/testing/plain_loop.h"
#include "hydra/testing/random_data.h"
#include "hydra/testing/small_models.h"

namespace hydra {
namespace {

std::int64_t elements_of(const Layer& layer) {
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : layer.parameters()) elements += parameter.numel();
  return elements;
}

// What the layers of any size add up to; the tied weight counts once.
std::int64_t parameters_of(const Gpt2Options& o) {
  const std::int64_t block = 12 * o.width * o.width + 13 * o.width;
  return (o.vocabulary_size + o.context) * o.width + o.layers * block + 2 * o.width;
}

TEST(Gpt2Test, PublishedSizesHaveTheirParameterCounts) {
  EXPECT_EQ(parameters_of(gpt2_size("gpt2")), 124'439'808);
  EXPECT_EQ(parameters_of(gpt2_size("355M")), 354'823'168);
  EXPECT_EQ(parameters_of(gpt2_size("gpt2-large")), 774'030'080);
  EXPECT_EQ(parameters_of(gpt2_size("1.5B")), 1'557'611'200);
}

TEST(Gpt2Test, LayersHaveTheParametersThatTheSizeSays) {
  const Gpt2Options options = gpt2_size("gpt2");
  const auto model = make_gpt2(options);
  // Blocks are alike: one is made and counted once for each.
  const std::int64_t elements = elements_of(*make_layer(*model, 0, 0)) +
                                options.layers * elements_of(*make_layer(*model, 1, 0)) +
                                elements_of(*make_layer(*model, 1 + options.layers, 0));
  EXPECT_EQ(elements - options.vocabulary_size * options.width, parameters_of(options));
}

TEST(Gpt2Test, UnknownSizeListsTheNames) {
  try {
    gpt2_size("gpt3");
    FAIL();
  } catch (const InvalidArgument& error) {
    for (const char* name : {"gpt3", "gpt2-medium", "774M", "gpt2-xl"}) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << name;
    }
  }
}

TEST(Gpt2Test, ImpossibleOptionsAreRefused) {
  const auto refused = [](auto change) {
    Gpt2Options options = testing::tiny_gpt2_options();
    change(options);
    EXPECT_THROW(make_gpt2(options), InvalidArgument);
  };
  refused([](Gpt2Options& o) { o.layers = 0; });
  refused([](Gpt2Options& o) { o.width = 0; });
  refused([](Gpt2Options& o) { o.heads = 3; });
  refused([](Gpt2Options& o) { o.context = -1; });
  refused([](Gpt2Options& o) { o.vocabulary_size = 0; });
  refused([](Gpt2Options& o) { o.head_chunk_tokens = 0; });
  refused([](Gpt2Options& o) { o.dropout = 1.0; });
  refused([](Gpt2Options& o) { o.dropout = std::nan(""); });
  refused([](Gpt2Options& o) { o.initializer_range = 0.0; });
  refused([](Gpt2Options& o) { o.epsilon = 0.0; });
}

TEST(Gpt2Test, NamesAndShapesAreHuggingFaces) {
  const auto model = make_gpt2(testing::tiny_gpt2_options());
  ASSERT_EQ(model->layers().size(), 4U);
  EXPECT_EQ(model->layers()[0].name, "embedding");
  EXPECT_EQ(model->layers()[2].name, "block1");
  EXPECT_EQ(model->layers()[3].name, "head");
  const auto block = make_layer(*model, 1, 0);
  const std::vector<std::string> names{
      "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
      "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
      "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
  EXPECT_EQ(block->named_parameters().keys(), names);
  EXPECT_EQ(block->named_parameters()["attn.c_attn.weight"].sizes(), at::IntArrayRef({16, 48}));
  EXPECT_EQ(make_layer(*model, 0, 0)->named_parameters().keys(),
            (std::vector<std::string>{"wte.weight", "wpe.weight"}));
}

TEST(Gpt2Test, ResidualProjectionsStartSmaller) {
  Gpt2Options options = testing::tiny_gpt2_options();
  options.layers = 8;
  options.width = 128;
  const auto block = make_layer(*make_gpt2(options), 1, 3);
  const auto parameters = block->named_parameters();
  EXPECT_NEAR(parameters["attn.c_attn.weight"].std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(parameters["attn.c_proj.weight"].std().item<double>(), 0.02 / 4, 0.0003);
  EXPECT_NEAR(parameters["mlp.c_proj.weight"].std().item<double>(), 0.02 / 4, 0.0003);
  EXPECT_EQ(parameters["mlp.c_fc.bias"].abs().sum().item<double>(), 0.0);
}

TEST(Gpt2Test, FirstLossIsThatOfAnEvenGuess) {
  JobOptions job = testing::small_job("gpt2", 1, 1);
  EXPECT_NEAR(testing::plain_loop(job).losses[0], std::log(64.0), 0.1);
}

TEST(Gpt2Test, LossFalls) {
  JobOptions job = testing::small_job("gpt2", 1, 80);
  job.schedule.peak = 1e-2;
  const auto losses = testing::plain_loop(job).losses;
  EXPECT_LT(losses.back(), 0.7 * losses.front());
}

TEST(Gpt2Test, TwoRunsAreTheSameBits) {
  const JobOptions job = testing::small_job("gpt2", 5, 4);
  const auto first = testing::plain_loop(job);
  const auto second = testing::plain_loop(job);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(testing::fingerprint(first.weights, *job.model),
            testing::fingerprint(second.weights, *job.model));
}

TEST(Gpt2Test, OtherSeedsGiveOtherWeights) {
  const JobOptions job = testing::small_job("gpt2", 5, 1);
  const JobOptions other = testing::small_job("gpt2", 6, 1);
  EXPECT_NE(testing::fingerprint(testing::plain_loop(job).weights, *job.model),
            testing::fingerprint(testing::plain_loop(other).weights, *job.model));
}

TEST(Gpt2Test, IgnoredTargetsAloneLeaveALossOfZero) {
  const auto model = make_gpt2(testing::tiny_gpt2_options());
  const auto head = make_layer(*model, 3, 0);
  const SideInputs side{{"targets", torch::full({2, 8}, -100, torch::kLong)}};
  LayerContext context({0, 0, 0, 3}, Mode::kTrain, 16.0, side);
  const at::Tensor hidden = torch::randn({2, 8, 16}).requires_grad_(true);
  const Tensors loss = head->forward({hidden}, context);
  EXPECT_EQ(loss[0].item<float>(), 0.0F);
  loss[0].backward();
  EXPECT_EQ(hidden.grad().abs().sum().item<float>(), 0.0F);
}

}  // namespace
}  // namespace hydra
