// Shards bound to flat memory against the same layers as plain modules, bit for bit.

#include "hydra/model/bound_shard.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cstring>
#include <stdexcept>

#include "hydra/core/error.h"
#include "hydra/model/layer.h"

namespace hydra {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 3;
const SideInputs kNoSide;

LayerFactory linear(std::int64_t in, std::int64_t out) {
  return module_layer([=] { return torch::nn::Linear(in, out); });
}

LayerContext context_of(std::int64_t use) {
  return LayerContext({kSeed, 0, 0, use}, Mode::kTrain, 1.0, kNoSide);
}

/// Flat memory for a shard, with the shard bound or not.
class FlatShard {
 public:
  FlatShard(const Model& model, std::int64_t first, std::int64_t end)
      : schema_(describe_model(model)) {
    const FlatLayout layout = make_layout(schema_, first, end);
    memory_.trainable = take(layout.trainable_bytes);
    memory_.frozen = take(layout.frozen_bytes);
    memory_.buffers = take(layout.buffer_bytes);
    memory_.gradients = take(layout.trainable_bytes);
    for (const auto& use : layout.tied) {
      const Bytes size = tie_bytes(schema_, use.tie);
      // All uses of a tie share one part.
      auto& part = ties_[static_cast<std::size_t>(use.tie)];
      if (part == nullptr) part = take(size);
      memory_.tied.push_back(part);
      const bool frozen = schema_.ties[static_cast<std::size_t>(use.tie)].frozen;
      memory_.tied_gradients.push_back(frozen ? nullptr : take(size));
    }
    std::vector<std::shared_ptr<Layer>> layers;
    for (std::int64_t l = first; l < end; ++l) {
      layers.push_back(make_layer(model, l, kSeed));
      store_initial_values(layout, l, *layers.back(), memory_.trainable, memory_.frozen,
                           memory_.buffers,
                           [&](std::int64_t tie) { return ties_[static_cast<std::size_t>(tie)]; });
    }
    layers_ = layers;
    bound_ = std::make_unique<BoundShard>(schema_, layout, std::move(layers));
  }

  explicit FlatShard(const Model& model)
      : FlatShard(model, 0, static_cast<std::int64_t>(model.layers().size())) {}

  void bind() { bound_->bind(memory_); }
  BoundShard& bound() { return *bound_; }
  ShardMemory& memory() { return memory_; }
  const FlatLayout& layout() const { return bound_->layout(); }
  const std::vector<std::shared_ptr<Layer>>& layers() const { return layers_; }
  void destroy_shard() { bound_.reset(); }

  Tensors forward(const Tensors& inputs) { return bound_->forward(inputs, context_of); }

  /// A copy of the accumulated gradient of the i-th trainable entry.
  at::Tensor gradient(std::size_t i) const {
    const auto& entry = layout().trainable[i];
    return floats(memory_.gradients + entry.offset.size(), entry.elements);
  }
  at::Tensor tied_gradient(std::size_t i, std::int64_t elements) const {
    return floats(memory_.tied_gradients[i], elements);
  }

  static at::Tensor floats(const std::byte* data, std::int64_t elements) {
    at::Tensor copy = at::empty({elements});
    if (elements > 0) std::memcpy(copy.data_ptr(), data, copy.nbytes());
    return copy;
  }

 private:
  std::byte* take(Bytes size) {
    if (size == Bytes(0)) return nullptr;
    owned_.push_back(at::zeros({size.count()}, at::kByte));
    return static_cast<std::byte*>(owned_.back().data_ptr());
  }

  ModelSchema schema_;
  std::vector<at::Tensor> owned_;
  std::array<std::byte*, 4> ties_{};
  ShardMemory memory_;
  std::vector<std::shared_ptr<Layer>> layers_;
  std::unique_ptr<BoundShard> bound_;
};

/// The same layers as ordinary modules, run in order.
struct PlainLayers {
  explicit PlainLayers(const Model& model) {
    for (std::size_t l = 0; l < model.layers().size(); ++l) {
      layers.push_back(make_layer(model, static_cast<std::int64_t>(l), kSeed));
      for (const at::Tensor& parameter : layers.back()->parameters()) {
        parameters.push_back(parameter);
      }
    }
  }
  Tensors forward(Tensors tensors) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
      LayerContext context = context_of(static_cast<std::int64_t>(l));
      tensors = layers[l]->forward(tensors, context);
    }
    return tensors;
  }
  std::vector<std::shared_ptr<Layer>> layers;
  Tensors parameters;
};

/// As many parameters of awkward sizes as it is given, all of which count.
class Sizes final : public Layer {
 public:
  explicit Sizes(std::vector<std::int64_t> sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      weights_.push_back(register_parameter("w" + std::to_string(i), at::randn({sizes[i]})));
    }
  }
  Tensors forward(const Tensors& inputs, LayerContext&) override {
    at::Tensor scale = inputs[0].sum();
    for (const at::Tensor& weight : weights_) scale = scale + at::tanh(weight * scale).sum();
    return {scale};
  }

 private:
  Tensors weights_;
};

TEST(BoundShardTest, GradientsAreThoseOfPlainModulesForOddSizes) {
  Model model("odd");
  model.add("sizes", layer<Sizes>(std::vector<std::int64_t>{1, 3, 7, 17, 1021, 0, 16}));
  FlatShard shard(model);
  PlainLayers plain(model);
  shard.bind();
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    const at::Tensor input = at::randn({5});
    const at::Tensor loss = shard.forward({input})[0];
    const at::Tensor plain_loss = plain.forward({input})[0];
    EXPECT_TRUE(at::equal(loss, plain_loss));
    loss.backward();
    plain_loss.backward();
  }
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(shard.gradient(i), plain.parameters[i].grad())) << i;
  }
  EXPECT_THAT(shard.bound().touched_trainable(), Each(true));
}

TEST(BoundShardTest, AChainOfLayersGivesThePlainBitsAndInputGradients) {
  Model model("chain");
  model.add("a", linear(3, 7)).add("b", linear(7, 17)).add("c", linear(17, 1021));
  FlatShard shard(model);
  PlainLayers plain(model);
  shard.bind();
  const at::Tensor input = at::randn({4, 3}).requires_grad_(true);
  const at::Tensor plain_input = input.detach().clone().requires_grad_(true);
  const at::Tensor seed = at::randn({4, 1021});
  torch::autograd::backward({shard.forward({input})[0]}, {seed});
  torch::autograd::backward({plain.forward({plain_input})[0]}, {seed});
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(shard.gradient(i), plain.parameters[i].grad().flatten())) << i;
  }
  EXPECT_TRUE(at::equal(input.grad(), plain_input.grad()));
}

TEST(BoundShardTest, AutogradAddsInPlaceIntoTheFlatGradient) {
  Model model("one");
  model.add("fc", linear(5, 3));
  FlatShard shard(model);
  shard.bind();
  const auto& layer = *shard.layers()[0];
  const auto gradient_data = [&](std::size_t i) { return layer.parameters()[i].grad().data_ptr(); };
  EXPECT_EQ(gradient_data(0), shard.memory().gradients);
  for (int pass = 0; pass < 2; ++pass) {
    shard.forward({at::ones({2, 5})})[0].sum().backward();
    EXPECT_EQ(gradient_data(0), shard.memory().gradients);
    EXPECT_EQ(gradient_data(1),
              shard.memory().gradients + shard.layout().trainable[1].offset.size());
    EXPECT_TRUE(at::equal(shard.gradient(0), at::ones({15}) * 2 * (pass + 1)));
  }
}

class Branch final : public Layer {
 public:
  Branch()
      : used_(register_parameter("used", at::ones({3}))),
        unused_(register_parameter("unused", at::ones({3}))),
        nothing_(register_parameter("nothing", at::ones({0}))) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    return {context.layer_use() == 0 ? inputs[0] * used_ : inputs[0] * unused_};
  }

 private:
  at::Tensor used_;
  at::Tensor unused_;
  at::Tensor nothing_;
};

TEST(BoundShardTest, AParameterOfAnUnusedBranchIsUntouched) {
  Model model("branch");
  model.add("branch", layer<Branch>());
  FlatShard shard(model);
  shard.bind();
  EXPECT_THAT(shard.bound().touched_trainable(), ElementsAre(false, false, false));
  shard.forward({at::ones({3})})[0].sum().backward();
  EXPECT_THAT(shard.bound().touched_trainable(), ElementsAre(true, false, false));
  EXPECT_TRUE(at::equal(shard.gradient(1), at::zeros({3})));
}

TEST(BoundShardTest, AGradientOfZeroesCountsAsTouched) {
  Model model("branch");
  model.add("branch", layer<Branch>());
  FlatShard shard(model);
  shard.bind();
  shard.forward({at::zeros({3})})[0].sum().backward();
  EXPECT_THAT(shard.bound().touched_trainable(), ElementsAre(true, false, false));
}

TEST(BoundShardTest, BindingAgainForgetsWhatWasTouched) {
  Model model("branch");
  model.add("branch", layer<Branch>());
  FlatShard shard(model);
  shard.bind();
  shard.forward({at::ones({3})})[0].sum().backward();
  shard.bind();
  EXPECT_THAT(shard.bound().touched_trainable(), Each(false));
  shard.bound().unbind();
  EXPECT_THAT(shard.bound().touched_trainable(), Each(false));
}

TEST(BoundShardTest, AForwardUnitHasNoGradients) {
  Model model("one");
  model.add("fc", linear(2, 2));
  FlatShard shard(model);
  shard.bind();
  shard.memory().gradients = nullptr;
  shard.bind();  // also when it had some before
  for (const at::Tensor& parameter : shard.layers()[0]->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_THAT(shard.bound().touched_trainable(), Each(false));
}

TEST(BoundShardTest, AShardOfParametersWithoutElementsWorks) {
  Model model("nothing");
  model.add("sizes", layer<Sizes>(std::vector<std::int64_t>{0, 0}));
  FlatShard shard(model);
  EXPECT_EQ(shard.layout().trainable_bytes, Bytes(0));
  shard.bind();
  const at::Tensor input = at::ones({2}).requires_grad_(true);
  shard.forward({input})[0].backward();
  EXPECT_TRUE(input.grad().defined());
}

/// Adds to its weight's gradient by hand, as GPT-2's embedding and head do.
struct AddsItself : torch::autograd::Function<AddsItself> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight) {
    context->save_for_backward({input});
    context->saved_data["weight"] = weight;
    return input * weight.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::Tensor weight = context->saved_data["weight"].toTensor();
    at::NoGradGuard not_recording;
    weight.mutable_grad().add_(gradients[0] * context->get_saved_variables()[0]);
    return {gradients[0] * weight.detach(), at::Tensor()};
  }
};

class AddsByHand final : public Layer {
 public:
  AddsByHand() : weight_(register_parameter("weight", at::ones({4}))) {}
  Tensors forward(const Tensors& inputs, LayerContext&) override {
    return {AddsItself::apply(inputs[0], weight_)};
  }

 private:
  at::Tensor weight_;
};

TEST(BoundShardTest, AddingToTheGradientByHandCountsAsTouched) {
  Model model("by hand");
  model.add("by_hand", layer<AddsByHand>());
  FlatShard shard(model);
  shard.bind();
  const at::Tensor input = at::randn({4}).requires_grad_(true);
  shard.forward({input})[0].sum().backward();
  EXPECT_THAT(shard.bound().touched_trainable(), ElementsAre(true));
  EXPECT_TRUE(at::equal(shard.gradient(0), input.detach()));
}

TEST(BoundShardTest, AGradientThatWasReplacedIsRefusedByName) {
  Model model("one");
  model.add("fc", linear(2, 2));
  FlatShard shard(model);
  shard.bind();
  shard.layers()[0]->parameters()[1].mutable_grad() = at::ones({2});
  try {
    shard.bound().touched_trainable();
    FAIL() << "not refused";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"fc.bias\""));
  }
}

TEST(BoundShardTest, EachUseOfATieHasItsOwnAccumulatorAndOnePart) {
  Model model("tied");
  model.add("a", linear(3, 3)).add("b", linear(3, 3));
  model.tie({"a.weight", "b.weight"});
  FlatShard shard(model);
  PlainLayers plain(model);
  plain.parameters[2].set_data(plain.parameters[0].data());
  shard.bind();
  EXPECT_EQ(shard.layers()[0]->parameters()[0].data_ptr(),
            shard.layers()[1]->parameters()[0].data_ptr());
  const at::Tensor input = at::randn({4, 3});
  shard.forward({input})[0].sum().backward();
  plain.forward({input})[0].sum().backward();
  EXPECT_THAT(shard.bound().touched_tied(), ElementsAre(true, true));
  EXPECT_TRUE(at::equal(shard.tied_gradient(0, 9), plain.parameters[0].grad().flatten()));
  EXPECT_TRUE(at::equal(shard.tied_gradient(1, 9), plain.parameters[2].grad().flatten()));
}

TEST(BoundShardTest, FrozenParametersHaveValuesAndNoGradients) {
  Model model("frozen");
  model.add("a", linear(3, 3)).add("b", linear(3, 3)).add("c", linear(3, 3));
  model.freeze("a.*").freeze("b.bias").tie({"a.weight", "c.weight"});
  FlatShard shard(model);
  shard.bind();
  shard.forward({at::randn({2, 3})})[0].sum().backward();
  for (const std::size_t layer : {0U, 2U}) {
    EXPECT_FALSE(shard.layers()[layer]->parameters()[0].requires_grad());
    EXPECT_FALSE(shard.layers()[layer]->parameters()[0].grad().defined());
  }
  EXPECT_FALSE(shard.layers()[1]->parameters()[1].grad().defined());
  EXPECT_THAT(shard.bound().touched_tied(), Each(false));
  EXPECT_THAT(shard.bound().touched_trainable(), Each(true));
}

TEST(BoundShardTest, BuffersAreWrittenThrough) {
  Model model("norm");
  model.add("norm", module_layer([] { return torch::nn::BatchNorm1d(3); }));
  FlatShard shard(model);
  PlainLayers plain(model);
  shard.bind();
  shard.bound().train(true);
  for (int i = 0; i < 2; ++i) {
    const at::Tensor input = at::randn({8, 3});
    EXPECT_TRUE(at::equal(shard.forward({input})[0], plain.forward({input})[0]));
  }
  shard.bound().unbind();
  const Tensors expected = plain.layers[0]->buffers();
  for (std::size_t b = 0; b < expected.size(); ++b) {
    const std::byte* data = shard.memory().buffers + shard.layout().buffers[b].offset.size();
    EXPECT_EQ(std::memcmp(data, expected[b].data_ptr(), expected[b].nbytes()), 0) << b;
  }
}

TEST(BoundShardTest, TrainingModeReachesTheModules) {
  Model model("norm");
  model.add("norm", module_layer([] { return torch::nn::BatchNorm1d(3); }));
  FlatShard shard(model);
  shard.bound().train(false);
  EXPECT_FALSE(shard.layers()[0]->modules().back()->is_training());
  shard.bound().train(true);
  EXPECT_TRUE(shard.layers()[0]->modules().back()->is_training());
}

void expect_at_rest(const Layer& layer) {
  for (const at::Tensor& parameter : layer.parameters()) {
    EXPECT_EQ(parameter.numel(), 0);
    EXPECT_EQ(parameter.storage().nbytes(), 0U);
    EXPECT_FALSE(parameter.grad().defined());
  }
  for (const at::Tensor& buffer : layer.buffers()) EXPECT_EQ(buffer.storage().nbytes(), 0U);
}

TEST(BoundShardTest, AtRestNothingRefersToTheFlatMemory) {
  Model model("norm");
  model.add("norm", module_layer([] { return torch::nn::BatchNorm1d(3); }));
  FlatShard shard(model);
  expect_at_rest(*shard.layers()[0]);
  shard.bind();
  shard.forward({at::randn({8, 3})})[0].sum().backward();
  shard.bound().unbind();
  expect_at_rest(*shard.layers()[0]);
  shard.bind();
  const auto layer = shard.layers()[0];
  shard.destroy_shard();
  expect_at_rest(*layer);
}

TEST(BoundShardTest, AMiddleShardRunsItsLayersAsTheUsesThatTheyAre) {
  Model model("five");
  for (int l = 0; l < 5; ++l) model.add("layer" + std::to_string(l), linear(2, 2));
  FlatShard shard(model, 2, 4);
  shard.bind();
  std::vector<std::int64_t> uses;
  shard.bound().forward({at::ones({1, 2})}, [&](std::int64_t use) {
    uses.push_back(use);
    return context_of(use);
  });
  EXPECT_THAT(uses, ElementsAre(2, 3));
}

class Throwing final : public Layer {
 public:
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    if (inputs[0].numel() == 1) throw std::runtime_error("planted");
    if (inputs[0].numel() == 2) throw 42;  // NOLINT: not an exception type on purpose
    context.side("missing");
    return inputs;
  }
};

TEST(BoundShardTest, WhatALayerThrowsComesOutWithItsNameAndOurOwnErrorsAsTheyAre) {
  Model model("throwing");
  model.add("fault", layer<Throwing>());
  FlatShard shard(model);
  shard.bind();
  try {
    shard.forward({at::ones({1})});
    FAIL() << "nothing was thrown";
  } catch (const LayerError& error) {
    EXPECT_STREQ(error.what(), "layer \"fault\": planted");
  }
  EXPECT_THROW(shard.forward({at::ones({2})}), LayerError);
  EXPECT_THROW(shard.forward({at::ones({3})}), InvalidArgument);
}

TEST(StoreInitialValuesTest, WritesTheLayersOwnEntriesAndTheOwnersTiesAlone) {
  Model model("tied");
  model.add("a", linear(3, 3)).add("b", linear(3, 3));
  model.tie({"a.weight", "b.weight"}).freeze("b.bias");
  FlatShard shard(model);
  PlainLayers plain(model);
  EXPECT_TRUE(at::equal(FlatShard::floats(shard.memory().tied[0], 9),
                        plain.parameters[0].detach().flatten()));
  EXPECT_TRUE(
      at::equal(FlatShard::floats(shard.memory().trainable, 3), plain.parameters[1].detach()));
  EXPECT_TRUE(at::equal(FlatShard::floats(shard.memory().frozen, 3), plain.parameters[3].detach()));
}

}  // namespace
}  // namespace hydra
