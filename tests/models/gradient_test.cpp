// Every layer of every model here, in double, against differences of its own outputs.

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "hydra/core/random.h"
#include "hydra/model/layer.h"
#include "hydra/model/model.h"
#include "hydra/models/conv_net.h"
#include "hydra/models/dropout.h"
#include "hydra/models/gpt2.h"
#include "hydra/models/losses.h"
#include "hydra/models/mlp.h"
#include "hydra/models/sequential.h"

namespace hydra {
namespace {

constexpr double kStep = 1e-6;
// Differences over 2e-6 of numbers near 1 have 1e-10 of rounding and 1e-12 of curvature.
constexpr double kTolerance = 1e-7;
constexpr std::int64_t kMostProbes = 20;  // elements of one tensor

/// A layer in double with what it is given.
struct Subject {
  std::shared_ptr<Layer> layer;
  Tensors inputs;
  SideInputs side;
};

/// One call, always with the same identity and so with the same random numbers.
Tensors call(const Subject& subject) {
  LayerContext context({11, 1, 0, 1}, Mode::kTrain, 3.0, subject.side);
  return subject.layer->forward(subject.inputs, context);
}

/// The outputs as one number, in which each element weighs otherwise. A loss stays as it is.
at::Tensor as_one(const Tensors& outputs) {
  if (outputs.size() == 1 && outputs[0].dim() == 0) return outputs[0];
  at::Tensor sum = torch::zeros({}, torch::kDouble);
  for (const at::Tensor& output : outputs) {
    const at::Tensor weights = torch::arange(output.numel(), torch::kDouble).add(1).cos();
    sum = sum + (output.reshape({-1}) * weights).sum();
  }
  return sum;
}

double value(const Subject& subject) {
  const torch::NoGradGuard no_grad;
  return as_one(call(subject)).item<double>();
}

/// What is differentiated: parameters, and inputs of numbers.
std::vector<std::pair<std::string, at::Tensor>> leaves(const Subject& subject) {
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const auto& parameter : subject.layer->named_parameters()) {
    found.emplace_back(parameter.key(), parameter.value());
  }
  for (std::size_t i = 0; i < subject.inputs.size(); ++i) {
    if (subject.inputs[i].is_floating_point()) {
      found.emplace_back("input " + std::to_string(i), subject.inputs[i]);
    }
  }
  return found;
}

void expect_gradients(const Subject& subject, const std::string& what) {
  SCOPED_TRACE(what);
  for (auto& [name, leaf] : leaves(subject)) leaf.requires_grad_(true);
  as_one(call(subject)).backward();
  SplitMix64 random(5);
  for (const auto& [name, leaf] : leaves(subject)) {
    ASSERT_TRUE(leaf.grad().defined()) << name;
    const at::Tensor gradient = leaf.grad().contiguous();
    auto* element = leaf.data_ptr<double>();
    ASSERT_TRUE(leaf.is_contiguous()) << name;
    for (std::int64_t n = 0; n < std::min(kMostProbes, leaf.numel()); ++n) {
      const auto i =
          leaf.numel() <= kMostProbes
              ? n
              : static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(leaf.numel())));
      const double before = element[i];
      element[i] = before + kStep;
      const double above = value(subject);
      element[i] = before - kStep;
      const double below = value(subject);
      element[i] = before;
      const double expected = (above - below) / (2 * kStep);
      const double got = gradient.data_ptr<double>()[i];
      EXPECT_NEAR(got, expected, kTolerance * std::max(1.0, std::abs(expected)))
          << name << " at " << i;
    }
  }
}

/// Each layer of the model by itself, given what the one before it gives.
void expect_gradients_of_layers(const Model& model, Tensors inputs, const SideInputs& side) {
  torch::manual_seed(3);
  for (std::size_t i = 0; i < model.layers().size(); ++i) {
    Subject subject{make_layer(model, static_cast<std::int64_t>(i), 17), std::move(inputs), side};
    subject.layer->to(torch::kDouble);
    subject.layer->train();
    // Values of weights that are zero, or one, at first would hide a factor.
    for (at::Tensor parameter : subject.layer->parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.add_(torch::randn_like(parameter) * 0.2);
    }
    {
      const torch::NoGradGuard no_grad;
      inputs = call(subject);
      for (at::Tensor& input : inputs) input = input.detach().clone();
    }
    expect_gradients(subject, model.name() + " " + model.layers()[i].name);
  }
}

at::Tensor numbers(std::vector<std::int64_t> shape) {
  torch::manual_seed(2);
  return torch::randn(shape, torch::kDouble);
}

TEST(GradientTest, Gpt2sLayersWithDropoutAndIgnoredTargets) {
  Gpt2Options options;
  options.layers = 1;
  options.width = 12;
  options.heads = 3;
  options.context = 7;
  options.vocabulary_size = 13;
  options.dropout = 0.2;
  options.head_chunk_tokens = 4;
  const at::Tensor tokens = torch::tensor({{1, 5, 5, 12, 0}, {7, 1, 3, 3, 9}}, torch::kLong);
  const at::Tensor targets = torch::tensor({{5, 5, -100, 0, 2}, {1, 3, 3, 9, 12}}, torch::kLong);
  expect_gradients_of_layers(*make_gpt2(options), {tokens}, {{"targets", targets}});
}

TEST(GradientTest, AttentionOverSeveralBlocksOfRows) {
  Gpt2Options options;
  options.layers = 1;
  options.width = 4;
  options.heads = 2;
  options.context = 150;  // a block is 128 rows
  options.vocabulary_size = 5;
  const at::Tensor tokens = torch::arange(150, torch::kLong).remainder(5).view({1, 150});
  expect_gradients_of_layers(*make_gpt2(options), {tokens}, {{"targets", tokens}});
}

TEST(GradientTest, MlpsLayersWithBothActivationsAndLosses) {
  MlpOptions options;
  options.widths = {5, 6, 4};
  options.dropout = 0.3;
  expect_gradients_of_layers(*make_mlp(options), {numbers({3, 5})}, {{"targets", numbers({3, 4})}});
  options.activation = Activation::kRelu;
  options.loss = LossKind::kCrossEntropy;
  expect_gradients_of_layers(*make_mlp(options), {numbers({3, 5})},
                             {{"targets", torch::tensor({3, -100, 0}, torch::kLong)}});
}

TEST(GradientTest, ConvNetsLayersWithBatchNorm) {
  ConvNetOptions options;
  options.input_channels = 2;
  options.image_size = 8;
  options.channels = {3, 4};
  options.classes = 5;
  expect_gradients_of_layers(*make_conv_net(options), {numbers({3, 2, 8, 8})},
                             {{"targets", torch::tensor({1, 4, 0}, torch::kLong)}});
}

TEST(GradientTest, DropoutOfSeveralTensorsAndAWrappedModule) {
  auto model = wrap("wrapped", torch::nn::Sequential(torch::nn::Linear(4, 3)));
  model->add("dropout", layer<DropoutLayer>(0.4));
  model->add("loss", loss([](const Tensors& y, LayerContext& context) {
               return (y[0] - context.side("targets")).pow(4).sum() / context.loss_denominator();
             }));
  expect_gradients_of_layers(*model, {numbers({3, 4})}, {{"targets", numbers({3, 3})}});
}

}  // namespace
}  // namespace hydra
