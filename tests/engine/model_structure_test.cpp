// Models of unusual structure, cut as finely as they can be: the plain loop's bits.

#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <numeric>
#include <span>
#include <stdexcept>

#include "engine_fixture.h"
#include "hydra/checkpoint/safetensors.h"
#include "hydra/core/random.h"
#include "hydra/model/layer.h"
#include "hydra/models/losses.h"
#include "hydra/models/mlp.h"
#include "hydra/testing/owned_store.h"
#include "hydra/testing/random_data.h"

namespace hydra {
namespace {

using testing::small_job;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kIn = 8;
constexpr std::int64_t kOut = 4;

/// y = tanh(x W + b)
class Affine final : public Layer {
 public:
  Affine(std::int64_t in, std::int64_t out)
      : weight_(register_parameter("weight", at::randn({out, in}) * 0.3)),
        bias_(register_parameter("bias", at::zeros({out}))) {}
  Tensors forward(const Tensors& inputs, LayerContext&) override {
    return {at::tanh(at::linear(inputs.at(0), weight_, bias_))};
  }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

/// A layer of a function of its inputs and of one parameter, "value".
class Applied final : public Layer {
 public:
  using Function = std::function<Tensors(const Tensors&, const at::Tensor&, LayerContext&)>;
  Applied(std::vector<std::int64_t> shape, Function function)
      : value_(register_parameter("value", at::randn(shape) * 0.3)),
        function_(std::move(function)) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    return function_(inputs, value_, context);
  }

 private:
  at::Tensor value_;
  Function function_;
};

LayerFactory applied(std::vector<std::int64_t> shape, Applied::Function function) {
  return layer<Applied>(std::move(shape), std::move(function));
}

JobOptions job_of(std::shared_ptr<Model> model, std::uint64_t seed, std::int64_t steps) {
  JobOptions job = small_job("mlp", seed, steps);
  job.name = model->name();
  job.model = std::move(model);
  return job;
}

/// Cuts the model before each of its layers but the first and the loss.
std::shared_ptr<Model> cut_everywhere(std::shared_ptr<Model> model) {
  for (std::size_t i = 1; i + 1 < model->layers().size(); ++i) {
    model->cut_before(model->layers()[i].name);
  }
  return model;
}

/// The job at its smallest budget on one and on two devices, as it is and clipped.
void expect_plain_bits_sharded(JobOptions job) {
  const Bytes smallest = smallest_budget(job);
  for (const bool clip : {false, true}) {
    if (clip) job.max_gradient_norm = 0.05;
    const auto expected = plain(job);
    for (const int devices : {1, 2}) {
      SCOPED_TRACE(std::to_string(devices) + (clip ? " devices, clipped" : " devices"));
      Runtime runtime(test_runtime(devices, smallest));
      const JobHandle handle = runtime.submit(job);
      expect_plain_bits(handle, expected);
      std::vector<double> norms;
      for (const StepMetrics& step : handle.metrics()) norms.push_back(step.gradient_norm);
      EXPECT_EQ(norms, expected.gradient_norms);
    }
  }
}

TEST(ModelStructureTest, AShardOfTwoInputsAndThreeOutputsKeepsItsBitsUnderHostileTiming) {
  auto model = std::make_shared<Model>("two in, three out");
  model->add("fork", applied({kIn}, [](const Tensors& x, const at::Tensor& v, LayerContext&) {
               return Tensors{x[0] * v, at::tanh(x[0])};
             }));
  model->add("cross", applied({kIn}, [](const Tensors& x, const at::Tensor& v, LayerContext&) {
               return Tensors{x[0] + x[1], x[0] * x[1] * v, x[1]};
             }));
  model->add("join", applied({kOut, kIn}, [](const Tensors& x, const at::Tensor& v, LayerContext&) {
               return Tensors{at::linear(x[0] + x[1] * x[2], v)};
             }));
  model->add("loss", mean_squared_error_loss());
  const JobOptions job = job_of(cut_everywhere(model), 300, 3);
  const auto expected = plain(job);
  const Bytes smallest = smallest_budget(job);
  for (int seed = 0; seed < (long_run() ? 200 : 10); ++seed) {
    RuntimeOptions options = test_runtime(2, smallest);
    for (auto& device : options.devices) {
      device.faults.delay_seed = static_cast<std::uint64_t>(seed);
      device.faults.largest_delay = std::chrono::microseconds(200);
      device.faults.poison_on_release = true;
    }
    Runtime runtime(std::move(options));
    const JobHandle one = runtime.submit(job);
    const JobHandle two = runtime.submit(job);
    SCOPED_TRACE(seed);
    expect_plain_bits(one, expected);
    expect_plain_bits(two, expected);
  }
}

TEST(ModelStructureTest, AShardThatIsUnusedForAStepKeepsItsBitsAndLeavesTheNorm) {
  auto model = std::make_shared<Model>("unused shard");
  model->add("first", layer<Affine>(kIn, kIn));
  model->add("skipped", applied({kIn}, [](const Tensors& x, const at::Tensor& v, LayerContext& c) {
               return c.step() % 2 == 1 ? x : Tensors{x[0] * v};
             }));
  model->add("last", layer<Affine>(kIn, kOut));
  model->add("loss", mean_squared_error_loss());
  JobOptions job = job_of(cut_everywhere(model), 301, 4);
  expect_plain_bits_sharded(job);

  job.max_gradient_norm = 0.05;
  std::vector<at::Tensor> after;  // steps 0 and 1
  for (const std::int64_t steps : {1, 2}) {
    job.max_steps = steps;
    Runtime runtime(test_runtime(1, smallest_budget(job)));
    for (const auto& [name, value] : runtime.submit(job).weights()) {
      if (name == "skipped.value") after.push_back(value);
    }
  }
  ASSERT_EQ(after.size(), 2U);
  EXPECT_TRUE(after[0].equal(after[1]));
}

/// y = x W twice over, in one layer that uses W twice, or in two layers whose weights are tied.
std::shared_ptr<Model> twice(bool in_one_layer) {
  auto model = std::make_shared<Model>(in_one_layer ? "twice in a layer" : "twice in two shards");
  const auto once = [](const Tensors& x, const at::Tensor& w, LayerContext&) {
    return Tensors{at::linear(x[0], w)};
  };
  if (in_one_layer) {
    model->add("both",
               applied({kIn, kIn}, [](const Tensors& x, const at::Tensor& w, LayerContext&) {
                 return Tensors{at::linear(at::linear(x[0], w), w)};
               }));
  } else {
    model->add("one", applied({kIn, kIn}, once)).add("two", applied({kIn, kIn}, once));
    model->tie({"one.value", "two.value"}).cut_before("two");
  }
  model->add("loss", mean_squared_error_loss());
  return model;
}

TEST(ModelStructureTest, AWeightThatIsUsedTwiceHasTheSumOfItsGradientsOnce) {
  for (const bool in_one_layer : {true, false}) {
    JobOptions job = job_of(twice(in_one_layer), 302, 1);
    job.data = std::make_shared<testing::RandomRegression>(
        testing::RandomRegression::Options{.seed = 302, .out = kIn});
    job.optimizer = SgdOptions{};
    job.schedule.peak = 1.0;
    Runtime runtime(test_runtime(2, smallest_budget(job)));
    const auto weights = runtime.submit(job).weights();
    ASSERT_EQ(weights.size(), 1U);

    // What an ordinary program makes of it in double.
    JobOptions start = job;
    start.max_steps = 0;
    const at::Tensor before = plain(start).weights.at(0).second.to(at::kDouble);
    const at::Tensor leaf = before.clone().requires_grad_(true);
    const Batch batch = job.data->batch(0);
    const at::Tensor x = batch.inputs[0].to(at::kDouble);
    const at::Tensor error = at::linear(at::linear(x, leaf), leaf) - batch.side[0].second;
    (error.square().sum() / (batch.loss_denominator * kIn)).backward();
    const at::Tensor moved = before - weights[0].second.to(at::kDouble);
    EXPECT_LT((moved - leaf.grad()).abs().max().item<double>(), 1e-6) << job.name;

    job.max_steps = 4;
    job.optimizer = AdamWOptions{};
    job.schedule.peak = 1e-3;
    expect_plain_bits_sharded(job);
  }
}

std::shared_ptr<Model> deep_mlp(std::int64_t layers, std::int64_t width) {
  MlpOptions options;
  options.widths.assign(static_cast<std::size_t>(layers) + 1, width);
  options.widths.front() = kIn;
  options.widths.back() = kOut;
  return make_mlp(options);
}

TEST(ModelStructureTest, FiveShardsHaveTheBitsOfOneAfterTenSteps) {
  const JobOptions whole = job_of(deep_mlp(5, 16), 303, 10);
  const auto expected = plain(whole);
  const JobOptions cut = job_of(cut_everywhere(deep_mlp(5, 16)), 303, 10);
  for (const bool sharded : {false, true}) {
    Runtime runtime(test_runtime(1, Bytes(64 << 20)));
    const JobHandle handle = runtime.submit(sharded ? cut : whole);
    EXPECT_EQ(handle.plan().shards.size(), sharded ? 5U : 1U);
    expect_plain_bits(handle, expected);
  }
}

TEST(ModelStructureTest, AnyNumberOfShardsKeepsItsBitsWhateverNumberOfThemFits) {
  for (std::int64_t shards = 2; shards <= 9; ++shards) {
    const JobOptions job = job_of(cut_everywhere(deep_mlp(shards, 32)), 304, 3);
    const auto expected = plain(job);
    const Bytes smallest = smallest_budget(job);
    for (std::int64_t percent = 100; percent <= 100 * shards / 2; percent += 70) {
      Runtime runtime(test_runtime(1, Bytes(smallest.count() * percent / 100)));
      SCOPED_TRACE(std::to_string(shards) + " shards, " + std::to_string(percent) + " %");
      expect_plain_bits(runtime.submit(job), expected);
    }
  }
}

TEST(ModelStructureTest, ATieAmongSevenShardsOfWhichFewFitKeepsItsBits) {
  auto model = cut_everywhere(deep_mlp(7, 32));
  model->tie({"fc1.weight", "fc4.weight"});
  const JobOptions job = job_of(model, 305, 3);
  expect_plain_bits_sharded(job);
  Runtime runtime(test_runtime(1, smallest_budget(job) * 2));
  expect_plain_bits(runtime.submit(job), plain(job));
}

TEST(ModelStructureTest, ParametersOfOneAndOfNoElementsTrainAloneInAShardAndAmongOthers) {
  for (const bool cut : {false, true}) {
    auto model = std::make_shared<Model>("tiny parameters");
    model->add("first", layer<Affine>(kIn, kIn));
    model->add("one", applied({1}, [](const Tensors& x, const at::Tensor& v, LayerContext&) {
                 return Tensors{x[0] * v};
               }));
    model->add("none", applied({kIn, 0}, [](const Tensors& x, const at::Tensor& v, LayerContext&) {
                 return Tensors{x[0] + at::linear(x[0].narrow(1, 0, 0), v)};
               }));
    model->add("last", layer<Affine>(kIn, kOut));
    model->add("loss", mean_squared_error_loss());
    expect_plain_bits_sharded(job_of(cut ? cut_everywhere(model) : model, 306, 3));
  }
}

TEST(ModelStructureTest, ABatchOfOneElementTrainsOnTwoDevices) {
  MlpOptions options;
  options.widths = {1, 1, 1};
  JobOptions job = job_of(cut_everywhere(make_mlp(options)), 307, 3);
  job.data = std::make_shared<testing::RandomRegression>(
      testing::RandomRegression::Options{.seed = 307, .rows = 1, .in = 1, .out = 1});
  expect_plain_bits_sharded(job);
}

TEST(ModelStructureTest, WidthsThatDivideNothingTrain) {
  MlpOptions options;
  options.widths = {kIn, 1, 3, 7, 17, 1021, kOut};
  expect_plain_bits_sharded(job_of(cut_everywhere(make_mlp(options)), 308, 3));
}

/// Picks rows of channels, and keeps their numbers (no floats) for backward.
class PickFunction final : public torch::autograd::Function<PickFunction> {
 public:
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& input,
                            const at::Tensor& index) {
    saved->save_for_backward({index});
    saved->saved_data["width"] = input.size(1);
    return input.index_select(1, index);
  }
  static variable_list backward(AutogradContext* saved, variable_list gradients) {
    const at::Tensor index = saved->get_saved_variables()[0];
    EXPECT_EQ(index.scalar_type(), at::kLong);
    const std::int64_t width = saved->saved_data["width"].toInt();
    at::Tensor gradient = at::zeros({gradients[0].size(0), width}, gradients[0].options());
    return {gradient.index_add_(1, index, gradients[0]), {}};
  }
};

TEST(ModelStructureTest, IndicesThatAFunctionOfAutogradKeepsComeBackAsTheyWent) {
  auto model = std::make_shared<Model>("picks");
  model->add("first", layer<Affine>(kIn, kIn));
  model->add("pick", applied({kIn}, [](const Tensors& x, const at::Tensor& v, LayerContext&) {
               const at::Tensor index = std::get<1>(v.detach().sort());
               return Tensors{PickFunction::apply(x[0], index) * v};
             }));
  model->add("last", layer<Affine>(kIn, kOut));
  model->add("loss", mean_squared_error_loss());
  expect_plain_bits_sharded(job_of(cut_everywhere(model), 309, 3));
}

TEST(ModelStructureTest, ALayerThatSelectsNoRowTrains) {
  auto model = std::make_shared<Model>("selects nothing");
  model->add("first", layer<Affine>(kIn, kIn));
  model->add("select", applied({kIn}, [](const Tensors& x, const at::Tensor& v, LayerContext&) {
               const at::Tensor none = at::nonzero(x[0].detach().sum(1) > 1e30).squeeze(1);
               return Tensors{x[0] + (x[0].index_select(0, none) * v).sum()};
             }));
  model->add("last", layer<Affine>(kIn, kOut));
  model->add("loss", mean_squared_error_loss());
  expect_plain_bits_sharded(job_of(cut_everywhere(model), 310, 3));
}

TEST(ModelStructureTest, OneToFiveMicroBatchesAgreeFromTheFirstStepOnWithNothingKeptOnTheDevice) {
  for (std::int64_t rows = 1; rows <= 5; ++rows) {
    for (const std::int64_t steps : {1, 2, 3}) {
      JobOptions job = job_of(cut_everywhere(deep_mlp(4, 16)), 311, steps);
      job.data = std::make_shared<testing::RandomRegression>(
          testing::RandomRegression::Options{.seed = 311, .rows = rows});
      job.micro_batch_size = 1;
      RuntimeOptions options = test_runtime(1, smallest_budget(job));
      options.debug.evict_at_once = true;
      Runtime runtime(std::move(options));
      SCOPED_TRACE(std::to_string(rows) + " micro-batches, step " + std::to_string(steps));
      expect_plain_bits(runtime.submit(job), plain(job));
    }
  }
}

TEST(ModelStructureTest, AnExceptionInTheMiddleOfAShardLeavesNothingBehind) {
  for (const bool in_backward : {false, true}) {
    auto model = std::make_shared<Model>("throws");
    model->add("first", layer<Affine>(kIn, kIn));
    model->add("second", applied({kIn}, [in_backward](const Tensors& x, const at::Tensor& v,
                                                      LayerContext& context) {
                 const at::Tensor half = at::tanh(x[0] * v);
                 const bool now = at::GradMode::is_enabled() == in_backward;
                 if (context.step() == 1 && now) throw std::runtime_error("planted fault");
                 return Tensors{half * x[0]};
               }));
    model->add("last", layer<Affine>(kIn, kOut));
    model->add("loss", mean_squared_error_loss());
    const JobOptions job = job_of(cut_everywhere(model), 312, 3);
    Runtime runtime(test_runtime(1, smallest_budget(job)));
    const JobHandle handle = runtime.submit(job);
    EXPECT_THROW(handle.get(), LayerError);
    EXPECT_EQ(handle.metrics().size(), 1U);
    EXPECT_EQ(runtime.device_stats()[0].in_use, Bytes(0));
    EXPECT_EQ(runtime.host_budget().reserved(), Bytes(0));
    // The device is as good as new.
    const JobOptions after = job_of(cut_everywhere(deep_mlp(3, 4)), 313, 3);
    expect_plain_bits(runtime.submit(after), plain(after));
  }
}

TEST(ModelStructureTest, FrozenLayersHaveNoMomentsAndBeginTheirStepsWhenTheyAreUnfrozen) {
  const auto model = [] { return cut_everywhere(deep_mlp(4, 32)); };
  auto half = model();
  half->freeze("fc1.*").freeze("fc2.*");
  const JobOptions frozen = job_of(half, 314, 3);
  JobOptions whole = job_of(model(), 314, 3);
  const Bytes budget = smallest_budget(whole);
  Runtime runtime(test_runtime(1, budget));
  const std::int64_t elements = 2 * (32 * 32 + 32);
  // Neither moments nor gradients; what rounding to 64 bytes adds to each parameter aside.
  EXPECT_GE((runtime.plan(whole).host_state - runtime.plan(frozen).host_state).count(),
            elements * 2 * 4);

  const JobHandle first = runtime.submit(frozen);
  expect_plain_bits(first, plain(frozen));
  whole.initial_weights = std::make_shared<Weights>(first.weights());
  expect_plain_bits(runtime.submit(whole), plain(whole));
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

TEST(ModelStructureTest, ATiedWeightIsStoredOnceAndReadBackAsBothOfItsUses) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.path() + "/model.safetensors";
  const JobOptions job = small_job("gpt2", 315, 3);
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  const Weights weights = runtime.submit(job).weights();
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : weights)
    specs.push_back({name, StoredDtype::kF32, tensor.sizes().vec()});
  SafetensorsWriter writer(path, specs);
  for (const auto& [name, tensor] : weights) writer.append(name, bytes_of(tensor));
  writer.commit();

  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.find("head.weight"), nullptr);
  EXPECT_NE(reader.find("embedding.wte.weight"), nullptr);
  auto read = std::make_shared<Weights>();
  for (const TensorSpec& spec : reader.tensors()) {
    const at::Tensor tensor = at::zeros(spec.shape);
    reader.read(spec.name, Bytes(0),
                {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    read->emplace_back(spec.name, tensor);
  }
  JobOptions tune = small_job("gpt2", 316, 2);
  tune.initial_weights = read;
  JobOptions expected = tune;
  expected.initial_weights = std::make_shared<Weights>(weights);
  expect_plain_bits(runtime.submit(tune), plain(expected));
}

/// A layer that returns something else from step 1 on than when it was measured.
std::shared_ptr<Model> changing_model(const std::function<Tensors(const at::Tensor&)>& later) {
  auto model = std::make_shared<Model>("changing");
  model->add("first", layer<Affine>(kIn, kOut));
  model->add("changing", applied({kOut},
                                 [later](const Tensors& inputs, const at::Tensor& value,
                                         LayerContext& context) -> Tensors {
                                   const at::Tensor sum = inputs.at(0) + value;
                                   return context.step() == 0 ? Tensors{sum} : later(sum);
                                 }));
  model->add(
      "last",
      applied({kOut}, [](const Tensors& inputs, const at::Tensor& value, LayerContext&) -> Tensors {
        at::Tensor sum = inputs.at(0).to(at::kFloat) * value;
        if (inputs.size() > 1) sum = sum + inputs[1];
        return {sum};
      }));
  model->add("loss", mean_squared_error_loss());
  return cut_everywhere(model);
}

TEST(ModelStructureTest, ABorderThatChangesItsNumberOrTypesEndsTheJobByName) {
  const std::vector<std::function<Tensors(const at::Tensor&)>> changes{
      [](const at::Tensor& sum) {
        return Tensors{sum, sum * 2};
      },
      [](const at::Tensor& sum) { return Tensors{sum.to(at::kDouble)}; },
      [](const at::Tensor&) { return Tensors{}; }};
  for (const auto& change : changes) {
    const JobOptions job = job_of(changing_model(change), 450, 3);
    Runtime runtime(test_runtime(1, smallest_budget(job)));
    const JobHandle handle = runtime.submit(job);
    EXPECT_THROW(handle.get(), LayerError);
    EXPECT_EQ(handle.metrics().size(), 1U);
    EXPECT_NE(handle.status().reason.find("when it was measured"), std::string::npos)
        << handle.status().reason;
  }
}

}  // namespace
}  // namespace hydra
