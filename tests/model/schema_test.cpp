#include "hydra/model/schema.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>

#include "hydra/core/error.h"
#include "hydra/model/layer.h"

namespace hydra {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace literals;  // NOLINT: byte literals

/// A layer that registers what it is told to.
class Registering final : public Layer {
 public:
  using Register = std::function<void(Registering&)>;
  explicit Registering(const Register& registers) { registers(*this); }
  Tensors forward(const Tensors& inputs, LayerContext&) override { return inputs; }
};

LayerFactory registering(Registering::Register registers) {
  return [registers = std::move(registers)] { return std::make_shared<Registering>(registers); };
}

LayerFactory linear(std::int64_t in, std::int64_t out) {
  return module_layer([=] { return torch::nn::Linear(in, out); });
}

std::vector<std::string> names_of(const ModelSchema::Layer& layer) {
  std::vector<std::string> names;
  for (const auto& parameter : layer.parameters) names.push_back(parameter.full_name);
  for (const auto& buffer : layer.buffers) names.push_back(buffer.full_name);
  return names;
}

/// The message of the error of type E that describing the model throws.
template <typename E>
std::string refusal(const Model& model) {
  try {
    describe_model(model);
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "not refused";
  return "";
}

Model model_of(LayerFactory make) {
  Model model("model");
  model.add("odd", std::move(make));
  return model;
}

TEST(SchemaTest, AdaptedModulesNameTheirParametersWithoutAPrefix) {
  Model model("model");
  model.add("fc", linear(3, 2));
  model.add("shared_pointer",
            module_layer([] { return std::make_shared<torch::nn::LinearImpl>(2, 5); }));
  model.add("nested", module_layer([] {
              return torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
            }));
  const ModelSchema schema = describe_model(model);
  EXPECT_THAT(names_of(schema.layers[0]), ElementsAre("fc.weight", "fc.bias"));
  EXPECT_THAT(names_of(schema.layers[1]),
              ElementsAre("shared_pointer.weight", "shared_pointer.bias"));
  EXPECT_THAT(
      names_of(schema.layers[2]),
      ElementsAre("nested.0.weight", "nested.0.bias", "nested.1.weight", "nested.1.bias",
                  "nested.1.running_mean", "nested.1.running_var", "nested.1.num_batches_tracked"));
  EXPECT_THAT(schema.layers[0].parameters[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(schema.layers[0].parameters[0].elements, 6);
}

TEST(SchemaTest, AnOwnLayersModuleKeepsItsName) {
  const ModelSchema schema = describe_model(model_of(registering([](Registering& layer) {
    layer.register_parameter("weight", at::ones({1}));
    layer.register_module("module", torch::nn::Linear(1, 1));
  })));
  EXPECT_THAT(names_of(schema.layers[0]),
              ElementsAre("odd.weight", "odd.module.weight", "odd.module.bias"));
}

TEST(SchemaTest, BuffersKeepTheirTypesAndMayBeScalars) {
  const ModelSchema schema =
      describe_model(model_of(module_layer([] { return torch::nn::BatchNorm1d(3); })));
  const auto& tracked = schema.layers[0].buffers[2];
  EXPECT_EQ(tracked.type, at::kLong);
  EXPECT_TRUE(tracked.shape.empty());
  EXPECT_EQ(tracked.bytes, 8_B);
}

TEST(SchemaTest, AbsentParametersAndBuffersAreNotSeen) {
  const ModelSchema schema = describe_model(model_of(module_layer([] {
    return torch::nn::BatchNorm1d(
        torch::nn::BatchNormOptions(3).affine(false).track_running_stats(false));
  })));
  EXPECT_TRUE(names_of(schema.layers[0]).empty());
}

TEST(SchemaTest, ParametersMayHaveNoElements) {
  const ModelSchema schema = describe_model(model_of(registering([](Registering& layer) {
    layer.register_parameter("nothing", at::ones({0, 3}));
    layer.register_parameter("also_nothing", at::ones({0}));
  })));
  EXPECT_EQ(schema.layers[0].parameters[0].elements, 0);
}

TEST(SchemaTest, FreezesByPatternAndByRequiresGrad) {
  Model model("model");
  model.add("a", linear(2, 2)).add("b", linear(2, 2)).add("c", registering([](Registering& layer) {
                                                            layer.register_parameter(
                                                                "fixed", at::ones({2}),
                                                                /*requires_grad=*/false);
                                                            layer.register_parameter("free",
                                                                                     at::ones({2}));
                                                          }));
  model.freeze("a.*").freeze("?.bias");
  const ModelSchema schema = describe_model(model);
  const auto frozen = [&](std::size_t layer, std::size_t parameter) {
    return schema.layers[layer].parameters[parameter].frozen;
  };
  EXPECT_TRUE(frozen(0, 0) && frozen(0, 1));
  EXPECT_FALSE(frozen(1, 0));
  EXPECT_TRUE(frozen(1, 1));
  EXPECT_TRUE(frozen(2, 0));
  EXPECT_FALSE(frozen(2, 1));
}

TEST(SchemaTest, ATieIsDescribedOnceWithItsUses) {
  Model model("model");
  model.add("a", linear(2, 3)).add("b", linear(3, 2)).add("c", linear(2, 3));
  model.tie({"a.weight", "c.weight"});
  ModelSchema schema = describe_model(model);
  ASSERT_EQ(schema.ties.size(), 1U);
  EXPECT_EQ(schema.ties[0].full_name, "a.weight");
  EXPECT_EQ(schema.ties[0].uses, 2);
  EXPECT_EQ(schema.ties[0].elements, 6);
  EXPECT_THAT(schema.ties[0].layers, ElementsAre(0, 2));
  EXPECT_EQ(schema.layers[0].parameters[0].tie, 0);
  EXPECT_EQ(schema.layers[0].parameters[0].tie_use, 0);
  EXPECT_EQ(schema.layers[2].parameters[0].tie, 0);
  EXPECT_EQ(schema.layers[2].parameters[0].tie_use, 1);
  EXPECT_FALSE(schema.layers[2].parameters[1].tie.has_value());

  model.freeze("a.weight");
  schema = describe_model(model);
  EXPECT_TRUE(schema.ties[0].frozen);
  EXPECT_TRUE(schema.layers[2].parameters[0].frozen);
}

TEST(SchemaTest, TiesThatCannotBeAreRefused) {
  const auto refused = [](std::vector<std::string> names, const std::string& frozen = "") {
    Model model("model");
    model.add("a", linear(2, 2)).add("b", linear(2, 2)).add("c", linear(2, 3));
    if (!frozen.empty()) model.freeze(frozen);
    model.tie(std::move(names));
    return refusal<InvalidArgument>(model);
  };
  EXPECT_THAT(refused({"a.weight", "z.weight"}), HasSubstr("\"z.weight\""));
  EXPECT_THAT(refused({"a.weight", "b.nothing"}), HasSubstr("\"b.nothing\""));
  EXPECT_THAT(refused({"a.weight", "a.bias"}), HasSubstr("different layers"));
  EXPECT_THAT(refused({"b.weight", "a.weight"}), HasSubstr("layer order"));
  EXPECT_THAT(refused({"a.weight", "c.weight"}), HasSubstr("different shapes"));
  EXPECT_THAT(refused({"a.weight", "b.weight"}, "b.*"), HasSubstr("frozen but tied"));
  Model model("model");
  model.add("a", linear(2, 2)).add("b", linear(2, 2)).add("c", linear(2, 2));
  model.tie({"a.weight", "b.weight"}).tie({"b.weight", "c.weight"});
  EXPECT_THAT(refusal<InvalidArgument>(model), HasSubstr("\"b.weight\" is in two ties"));
  EXPECT_THROW(model.tie({"a.weight"}), InvalidArgument);
}

TEST(SchemaTest, PatternsAndCutsThatMatchNothingAreRefused) {
  Model frozen("model");
  frozen.add("a", linear(2, 2)).freeze("b.*");
  EXPECT_THAT(refusal<InvalidArgument>(frozen), HasSubstr("\"b.*\""));
  Model cut("model");
  cut.add("a", linear(2, 2)).cut_before("b");
  EXPECT_THAT(refusal<InvalidArgument>(cut), HasSubstr("\"b\""));
  EXPECT_THAT(refusal<InvalidArgument>(Model("empty one")), HasSubstr("\"empty one\""));
}

TEST(SchemaTest, CutsAreLayerIndicesInOrder) {
  Model model("model");
  for (const char* name : {"a", "b", "c", "d"}) model.add(name, linear(2, 2));
  model.cut_before("d").cut_before("b").cut_before("d").cut_before("a");
  EXPECT_THAT(describe_model(model).cuts, ElementsAre(1, 3));
}

TEST(SchemaTest, TensorsThatCannotBeFlatFloatsAreRefusedByName) {
  const auto refused = [](Registering::Register registers) {
    return refusal<Unsupported>(model_of(registering(std::move(registers))));
  };
  EXPECT_THAT(refused([](Registering& layer) {
                layer.register_parameter("half", at::ones({2}).to(at::kHalf));
              }),
              HasSubstr("parameter \"odd.half\" has type Half"));
  EXPECT_THAT(refused([](Registering& layer) {
                layer.register_parameter("double", at::ones({2}).to(at::kDouble), false);
              }),
              HasSubstr("parameter \"odd.double\" has type Double"));
  EXPECT_THAT(refused([](Registering& layer) {
                layer.register_parameter("sparse", at::ones({2, 2}).to_sparse());
              }),
              HasSubstr("parameter \"odd.sparse\" is sparse"));
  EXPECT_THAT(refused([](Registering& layer) {
                layer.register_buffer("sparse", at::ones({2, 2}).to_sparse());
              }),
              HasSubstr("buffer \"odd.sparse\" is sparse"));
}

TEST(SchemaTest, OneTensorUnderTwoNamesIsRefused) {
  const auto refused = [](Registering::Register registers) {
    const std::string message = refusal<Unsupported>(model_of(registering(std::move(registers))));
    EXPECT_THAT(message, HasSubstr("registered twice"));
    return message;
  };
  EXPECT_THAT(refused([](Registering& layer) {
                const at::Tensor once = layer.register_parameter("first", at::ones({2}));
                layer.register_parameter("second", once);
              }),
              HasSubstr("\"odd.second\" and \"odd.first\""));
  EXPECT_THAT(refused([](Registering& layer) {
                const at::Tensor once = layer.register_parameter("whole", at::ones({4}));
                layer.register_parameter("part", once.detach().slice(0, 1, 3));
              }),
              HasSubstr("\"odd.part\" and \"odd.whole\""));
  EXPECT_THAT(refused([](Registering& layer) {
                const at::Tensor once = layer.register_parameter("weight", at::ones({4}));
                layer.register_buffer("copy", once.detach());
              }),
              HasSubstr("\"odd.copy\" and \"odd.weight\""));
  EXPECT_THAT(refused([](Registering& layer) {
                const torch::nn::Linear once(1, 1);
                layer.register_module("first", once);
                layer.register_module("second", once);
              }),
              HasSubstr("\"odd.second.weight\" and \"odd.first.weight\""));
}

TEST(SchemaTest, DisjointViewsOfOneStorageAreTwoParameters) {
  const at::Tensor both = at::ones({4});
  EXPECT_NO_THROW(describe_model(model_of(registering([&](Registering& layer) {
    layer.register_parameter("low", both.slice(0, 0, 2).detach());
    layer.register_parameter("high", both.slice(0, 2, 4).detach());
  }))));
}

TEST(SchemaTest, FactoriesThatMakeNothingOrFailAreRefusedByName) {
  EXPECT_THAT(refusal<InvalidArgument>(model_of([] { return std::shared_ptr<Layer>(); })),
              HasSubstr("\"odd\" returned nothing"));
  EXPECT_THAT(
      refusal<LayerError>(model_of(module_layer([] { return torch::nn::Linear(nullptr); }))),
      HasSubstr("making layer \"odd\" failed: Accessing empty ModuleHolder"));
  EXPECT_THAT(refusal<InvalidArgument>(
                  model_of(module_layer([] { return std::shared_ptr<torch::nn::LinearImpl>(); }))),
              HasSubstr("layer \"odd\" has an empty module \"module\""));
  EXPECT_THAT(refusal<LayerError>(model_of(
                  []() -> std::shared_ptr<Layer> { throw std::runtime_error("no such file"); })),
              HasSubstr("making layer \"odd\" failed: no such file"));
  EXPECT_THROW(Model("model").add("odd", nullptr), InvalidArgument);
}

TEST(SchemaTest, AFactoryThatGivesOutOneLayerAgainAndAgainIsRefused) {
  const torch::nn::Linear shared(2, 2);
  EXPECT_THAT(refusal<Unsupported>(model_of(module_layer([shared] { return shared; }))),
              HasSubstr("must make a new layer in each call"));
}

TEST(SchemaTest, LayerNamesMustBeUsableInFullNames) {
  Model model("model");
  model.add("a", linear(1, 1));
  EXPECT_THROW(model.add("a", linear(1, 1)), InvalidArgument);
  EXPECT_THROW(model.add("", linear(1, 1)), InvalidArgument);
  EXPECT_THROW(model.add("a.b", linear(1, 1)), InvalidArgument);
}

TEST(MakeLayerTest, WeightsAreAFunctionOfSeedAndPlace) {
  Model model("model");
  model.add("a", linear(4, 4)).add("b", linear(4, 4));
  const auto weight = [&](std::int64_t index, std::uint64_t seed) {
    return make_layer(model, index, seed)->parameters()[0];
  };
  EXPECT_TRUE(at::equal(weight(0, 1), weight(0, 1)));
  EXPECT_FALSE(at::equal(weight(0, 1), weight(0, 2)));
  EXPECT_FALSE(at::equal(weight(0, 1), weight(1, 1)));
}

TEST(MakeLayerTest, TheProcessWideGeneratorIsAsBeforeAlsoAfterAFailure) {
  Model model("model");
  model.add("a", linear(4, 4)).add("b", [] {
    at::rand({3});
    throw std::runtime_error("fails after drawing");
    return std::shared_ptr<Layer>();
  });
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  make_layer(model, 0, 7);
  EXPECT_TRUE(at::equal(before, generator.get_state()));
  EXPECT_THROW(make_layer(model, 1, 7), LayerError);
  EXPECT_TRUE(at::equal(before, generator.get_state()));
}

TEST(MakeLayerTest, ThreadsDoNotMixTheirDraws) {
  Model model("model");
  model.add("a", linear(64, 64));
  const at::Tensor expected = make_layer(model, 0, 5)->parameters()[0];
  std::vector<std::thread> threads;
  std::atomic<int> different{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        if (!at::equal(make_layer(model, 0, 5)->parameters()[0], expected)) ++different;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace hydra
