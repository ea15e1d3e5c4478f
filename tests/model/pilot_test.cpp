#include "hydra/model/pilot.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <stdexcept>

#include "hydra/core/error.h"
#include "hydra/model/cpu_allocator_shim.h"
#include "hydra/model/layer.h"
#include "on_device.h"

namespace hydra {
namespace {

using ::testing::HasSubstr;
using namespace literals;  // NOLINT: byte literals

/// A layer of one function, without parameters.
class Calls final : public Layer {
 public:
  using Function = std::function<Tensors(const Tensors&, LayerContext&)>;
  explicit Calls(Function function) : function_(std::move(function)) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    return function_(inputs, context);
  }

 private:
  Function function_;
};

LayerFactory calls(Calls::Function function) { return layer<Calls>(std::move(function)); }

LayerFactory linear(std::int64_t in, std::int64_t out) {
  return module_layer([=] { return torch::nn::Linear(in, out); });
}

LayerFactory sum_loss() {
  return calls([](const Tensors& inputs, LayerContext& context) {
    return Tensors{inputs[0].sum() / context.loss_denominator()};
  });
}

class PilotTest : public ::testing::Test {
 protected:
  PilotTest() { install_cpu_allocator_shim(); }

  PilotResult run(const Model& model, const Tensors& inputs, const SideInputs& side = {}) {
    const ModelSchema schema = describe_model(model);
    PilotResult result;
    on_device(device_, [&] { result = run_pilot(model, schema, inputs, side, 4.0, 1, device_); });
    EXPECT_EQ(device_.stats().in_use, 0_B);
    return result;
  }

  /// The message of the error of type E that the pilot throws; nothing may stay on the device.
  template <typename E>
  std::string refusal(const Model& model, const Tensors& inputs) {
    std::string message;
    try {
      run(model, inputs);
      ADD_FAILURE() << "not refused";
    } catch (const E& error) {
      message = error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "another error: " << error.what();
    }
    EXPECT_EQ(device_.stats().in_use, 0_B);
    return message;
  }

  VirtualDevice device_{device_of(8_MiB)};
};

// 64 rows of 16, 32 and 8 floats: all below 16 KiB, so counted without rounding.
constexpr Bytes kRows16 = 4096_B;
constexpr Bytes kRows32 = 8192_B;
constexpr Bytes kRows8 = 2048_B;

TEST_F(PilotTest, ALinearLayersBytesAreKnownExactly) {
  Model model("linears");
  model.add("a", linear(16, 32)).add("b", linear(32, 8)).add("loss", sum_loss());
  const PilotResult result = run(model, {at::randn({64, 16})});
  const LayerMeasure& a = result.layers[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.trainable, 2048_B + 128_B);
  EXPECT_EQ(a.input, kRows16);
  EXPECT_EQ(a.output, kRows32);
  EXPECT_EQ(a.output_gradient, kRows32);
  EXPECT_EQ(a.graph, kRows32);  // its output; the input and the weight are there anyway
  EXPECT_EQ(a.forward_peak, kRows32);
  EXPECT_EQ(a.recorded_peak, kRows32);
  // Output, its gradient, and at most the gradients of weight and bias on their way to their sums.
  EXPECT_GE(a.backward_peak, 2 * kRows32 + 2048_B);
  EXPECT_LE(a.backward_peak, 2 * kRows32 + 2048_B + 128_B);

  const LayerMeasure& b = result.layers[1];
  EXPECT_EQ(b.input, kRows32);
  EXPECT_EQ(b.output, kRows8);
  EXPECT_EQ(b.graph, kRows8);
  // Unlike the first layer, it has an input gradient.
  EXPECT_GE(b.backward_peak, 2 * kRows8 + kRows32);
  EXPECT_LE(b.backward_peak, 2 * kRows8 + kRows32 + 1024_B + 64_B);
  EXPECT_GT(a.forward, Nanoseconds(0));
  EXPECT_GT(a.recorded, Nanoseconds(0));
  EXPECT_GT(a.backward, Nanoseconds(0));

  ASSERT_EQ(result.outputs.size(), 3U);
  EXPECT_EQ(result.outputs[0][0].shape, (std::vector<std::int64_t>{64, 32}));
  EXPECT_EQ(result.outputs[0][0].bytes, kRows32);
  EXPECT_TRUE(result.outputs[0][0].differentiable);
}

TEST_F(PilotTest, SavedActivationsCountAsGraph) {
  Model model("tanh");
  model.add("a", linear(16, 32));
  model.add("two_tanh", calls([](const Tensors& inputs, LayerContext&) {
              return Tensors{at::tanh(at::tanh(inputs[0]))};
            }));
  model.add("loss", sum_loss());
  const LayerMeasure measure = run(model, {at::randn({64, 16})}).layers[1];
  EXPECT_EQ(measure.forward_peak, 2 * kRows32);
  EXPECT_EQ(measure.graph, 2 * kRows32);  // both tanh's outputs are saved
  EXPECT_EQ(measure.recorded_peak, 2 * kRows32);
  EXPECT_EQ(measure.output, kRows32);
}

TEST_F(PilotTest, BytesAreTheSameEveryTime) {
  Model model("norms");
  model.add("a", linear(16, 32));
  model.add("norm", module_layer([] { return torch::nn::BatchNorm1d(32); }));
  model.add("loss", sum_loss());
  const Tensors inputs = {at::randn({64, 16})};
  const PilotResult first = run(model, inputs);
  const PilotResult second = run(model, inputs);
  for (std::size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(first.layers[l].graph, second.layers[l].graph);
    EXPECT_EQ(first.layers[l].forward_peak, second.layers[l].forward_peak);
    EXPECT_EQ(first.layers[l].recorded_peak, second.layers[l].recorded_peak);
    EXPECT_EQ(first.layers[l].backward_peak, second.layers[l].backward_peak);
  }
  EXPECT_EQ(first.layers[1].buffers, 128_B + 128_B + 64_B);
}

TEST_F(PilotTest, TiesAreListedAndNotAmongTheLayersOwnBytes) {
  Model model("tied");
  model.add("a", linear(16, 16)).add("b", linear(16, 16)).add("loss", sum_loss());
  model.tie({"a.weight", "b.weight"});
  const PilotResult result = run(model, {at::randn({64, 16})});
  EXPECT_EQ(result.layers[0].ties, std::vector<std::int64_t>{0});
  EXPECT_EQ(result.layers[1].ties, std::vector<std::int64_t>{0});
  EXPECT_EQ(result.layers[1].trainable, 64_B);
}

TEST_F(PilotTest, ThePassOfGradientsIsWhatTheModelsOwnIs) {
  Model model("frozen");
  model.add("a", linear(16, 16)).add("b", linear(16, 16)).add("c", linear(16, 16));
  model.add("loss", sum_loss()).freeze("a.*").freeze("b.weight");
  const PilotResult result = run(model, {at::randn({64, 16})});
  EXPECT_FALSE(result.outputs[0][0].differentiable);
  EXPECT_EQ(result.layers[0].output_gradient, 0_B);
  EXPECT_TRUE(result.outputs[1][0].differentiable);
  // b needs no input gradient, c does.
  EXPECT_GE(result.layers[2].backward_peak, result.layers[1].backward_peak + kRows16);
}

TEST_F(PilotTest, OutputsMayBeIntegersAbsentOrTheInputsThemselves) {
  Model model("odd outputs");
  model.add("a", linear(16, 16));
  model.add(
      "many", calls([](const Tensors& inputs, LayerContext&) {
        return Tensors{inputs[0], at::zeros({64}, at::kLong), at::Tensor(), inputs[0].detach() * 2};
      }));
  model.add("use", calls([](const Tensors& inputs, LayerContext&) {
              EXPECT_FALSE(inputs[2].defined());
              EXPECT_FALSE(inputs[3].requires_grad());
              return Tensors{inputs[0] + inputs[1].unsqueeze(1) + inputs[3]};
            }));
  model.add("loss", sum_loss());
  const PilotResult result = run(model, {at::randn({64, 16})});
  ASSERT_EQ(result.outputs[1].size(), 4U);
  EXPECT_TRUE(result.outputs[1][0].differentiable);
  EXPECT_EQ(result.outputs[1][1].type, at::kLong);
  EXPECT_FALSE(result.outputs[1][1].differentiable);
  EXPECT_EQ(result.outputs[1][2].bytes, 0_B);
  EXPECT_FALSE(result.outputs[1][3].differentiable);
  EXPECT_EQ(result.layers[1].output, 2 * kRows16 + 512_B);
  EXPECT_EQ(result.layers[1].output_gradient, kRows16);
}

TEST_F(PilotTest, SideInputsReachTheLayersOnTheDevice) {
  Model model("side");
  model.add("a", linear(16, 16));
  model.add("loss", calls([](const Tensors& inputs, LayerContext& context) {
              return Tensors{(inputs[0] - context.side("targets")).square().sum()};
            }));
  EXPECT_NO_THROW(run(model, {at::randn({64, 16})}, {{"targets", at::ones({64, 16})}}));
}

TEST_F(PilotTest, ALayerThatDrawsFromTheProcessWideGeneratorIsRefused) {
  Model model("dropout");
  model.add("a", linear(16, 16));
  model.add("drop", module_layer([] {
              return torch::nn::Sequential(torch::nn::Linear(16, 16), torch::nn::Dropout(0.5));
            }));
  model.add("loss", sum_loss());
  const std::string message = refusal<Unsupported>(model, {at::randn({64, 16})});
  EXPECT_THAT(message, HasSubstr("layer \"drop\" draws"));
  EXPECT_THAT(message, HasSubstr("torch::nn::DropoutImpl"));
  EXPECT_THAT(message, HasSubstr("hydra::dropout"));

  Model own("own");
  own.add("noise", calls([](const Tensors& inputs, LayerContext&) {
            return Tensors{inputs[0] + at::rand({64, 16})};
          }));
  own.add("loss", sum_loss());
  EXPECT_THAT(refusal<Unsupported>(own, {at::randn({64, 16})}), HasSubstr("layer \"noise\""));
}

TEST_F(PilotTest, ALayerThatDrawsFromItsContextIsNotRefused) {
  Model model("noise");
  model.add("a", linear(16, 16));
  model.add("noise", calls([](const Tensors& inputs, LayerContext& context) {
              return Tensors{inputs[0] + at::empty({64, 16}).uniform_(0, 1, context.generator())};
            }));
  model.add("loss", sum_loss());
  EXPECT_NO_THROW(run(model, {at::randn({64, 16})}));
}

TEST_F(PilotTest, ALastLayerThatGivesNoScalarIsRefused) {
  Model model("no loss");
  model.add("a", linear(16, 16));
  EXPECT_THAT(refusal<Unsupported>(model, {at::randn({64, 16})}),
              HasSubstr("\"a\", must return one scalar"));
  Model two("two losses");
  two.add("two", calls([](const Tensors& inputs, LayerContext&) {
            return Tensors{inputs[0].sum(), inputs[0].sum()};
          }));
  EXPECT_THAT(refusal<Unsupported>(two, {at::randn({64, 16})}), HasSubstr("\"two\""));
}

TEST_F(PilotTest, SparseGradientsAreRefused) {
  Model model("sparse");
  model.add("embedding", module_layer([] {
              return torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
            }));
  model.add("loss", sum_loss());
  const std::string message = refusal<Unsupported>(model, {at::zeros({6}, at::kLong)});
  EXPECT_THAT(message, HasSubstr("\"embedding.weight\" gets a sparse gradient"));
}

/// Keeps its last output, or nothing.
class Keeping final : public Layer {
 public:
  Tensors forward(const Tensors& inputs, LayerContext&) override {
    kept_ = at::tanh(inputs[0]);
    return {kept_};
  }

 private:
  at::Tensor kept_;
};

TEST_F(PilotTest, ALayerThatKeepsTensorsBetweenCallsIsRefused) {
  Model model("keeping");
  model.add("keeps", layer<Keeping>()).add("loss", sum_loss());
  const std::string message = refusal<Unsupported>(model, {at::randn({64, 16})});
  EXPECT_THAT(message, HasSubstr("layer \"keeps\" keeps 4.00 KiB"));
}

TEST_F(PilotTest, AParameterLargerThanTheBudgetIsRefusedBeforeItIsMade) {
  int made = 0;
  Model model("large");
  model.add("large", [&made]() -> std::shared_ptr<Layer> {
    ++made;
    return std::make_shared<ModuleLayer<torch::nn::LinearImpl>>(
        std::make_shared<torch::nn::LinearImpl>(1024, 2048));
  });
  model.add("loss", sum_loss());
  const std::string message = refusal<DoesNotFit>(model, {at::randn({2, 1024})});
  EXPECT_THAT(message, HasSubstr("layer \"large\" needs 16.02 MiB"));
  EXPECT_THAT(message, HasSubstr("8.00 MiB"));
  EXPECT_EQ(made, 1);  // by describe_model alone
}

TEST_F(PilotTest, ALayerWhoseRunDoesNotFitIsRefusedByName) {
  Model model("wide");
  model.add("a", linear(16, 16));
  model.add("wide", calls([](const Tensors& inputs, LayerContext&) {
              return Tensors{inputs[0].repeat({1, 4096})};
            }));
  model.add("loss", sum_loss());
  const std::string message = refusal<DoesNotFit>(model, {at::randn({64, 16})});
  EXPECT_THAT(message, HasSubstr("layer \"wide\""));
  EXPECT_THAT(message, HasSubstr("16.00 MiB asked for"));
  EXPECT_THAT(message, HasSubstr("budget 8.00 MiB"));
}

TEST_F(PilotTest, InputsLargerThanTheBudgetAreRefused) {
  Model model("loss alone");
  model.add("loss", sum_loss());
  EXPECT_THAT(refusal<DoesNotFit>(model, {at::randn({4 << 20})}), HasSubstr("the first batch"));
}

struct ThrowsBackward : torch::autograd::Function<ThrowsBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("planted in backward");
  }
};

TEST_F(PilotTest, WhatALayerThrowsNamesIt) {
  Model forward("forward");
  forward.add("a", linear(16, 16));
  forward.add("fault", calls([](const Tensors&, LayerContext&) -> Tensors {
                throw std::runtime_error("planted in forward");
              }));
  EXPECT_EQ(refusal<LayerError>(forward, {at::randn({64, 16})}),
            "layer \"fault\": planted in forward");
  Model backward("backward");
  backward.add("a", linear(16, 16));
  backward.add("fault", calls([](const Tensors& inputs, LayerContext&) {
                 return Tensors{ThrowsBackward::apply(at::tanh(inputs[0])).sum()};
               }));
  const std::string message = refusal<LayerError>(backward, {at::randn({64, 16})});
  EXPECT_THAT(message, HasSubstr("layer \"fault\""));
  EXPECT_THAT(message, HasSubstr("planted in backward"));
}

TEST_F(PilotTest, AFailureOfAnyAllocationLeavesNothingBehind) {
  Model model("norms");
  model.add("a", linear(16, 32));
  model.add("norm", module_layer([] { return torch::nn::BatchNorm1d(32); }));
  model.add("loss", sum_loss());
  const ModelSchema schema = describe_model(model);
  const Tensors inputs = {at::randn({64, 16})};
  int failures = 0;
  for (bool done = false; !done; ++failures) {
    ASSERT_LT(failures, 1000);
    on_device(device_, [&] {
      device_.fail_allocation_after(failures);
      try {
        run_pilot(model, schema, inputs, {}, 4.0, 1, device_);
        done = true;
      } catch (const DoesNotFit&) {
      }  // any other type fails the test
      device_.fail_allocation_after(-1);
      ASSERT_EQ(device_.stats().in_use, 0_B) << "after a failure at allocation " << failures;
    });
  }
  EXPECT_GT(failures, 30);
}

}  // namespace
}  // namespace hydra
