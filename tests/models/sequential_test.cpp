#include "hydra/models/sequential.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "../engine/engine_fixture.h"
#include "hydra/core/error.h"
#include "hydra/models/losses.h"

namespace hydra {
namespace {

namespace nn = torch::nn;

/// Fits the random regression of the small MLP: 8 in, 4 out.
nn::Sequential small_net() {
  return nn::Sequential(nn::Linear(8, 32), nn::BatchNorm1d(32), nn::ReLU(), nn::Linear(32, 32),
                        nn::Tanh(), nn::Linear(32, 4));
}

JobOptions job_of(const std::shared_ptr<Model>& model, std::int64_t steps) {
  JobOptions job = testing::small_job("mlp", 90, steps);
  job.model = model;
  return job;
}

at::Tensor weight(const Weights& weights, const std::string& name) {
  for (const auto& [known, tensor] : weights) {
    if (known == name) return tensor;
  }
  ADD_FAILURE() << "there is no " << name;
  return {};
}

struct OneLinearTwice : nn::Cloneable<OneLinearTwice> {
  OneLinearTwice() { reset(); }
  void reset() override {
    a = register_module("a", nn::Linear(4, 4));
    register_module("b", a);
  }
  at::Tensor forward(const at::Tensor& x) { return a(a(x)); }
  nn::Linear a{nullptr};
};

struct NoCopies : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST(WrapTest, AModelLargerThanItsDeviceTrainsToThePlainLoopsBits) {
  const auto model = wrap("net", small_net());
  model->add("loss", mean_squared_error_loss());
  const JobOptions job = job_of(model, 5);
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  const JobHandle handle = runtime.submit(job);
  EXPECT_GT(handle.plan().shards.size(), 1U);
  expect_plain_bits(handle, plain(job));
}

TEST(WrapTest, JobsBeginWithTheModulesWeightsAndLeaveThemAsTheyAre) {
  nn::Sequential net = small_net();
  const auto model = wrap("net", net);
  model->add("loss", mean_squared_error_loss());
  JobOptions job = job_of(model, 1);
  job.schedule.peak = 0;
  job.optimizer = SgdOptions{};
  const auto before = net[0]->as<nn::Linear>()->weight.detach().clone();
  for (const std::uint64_t seed : {1, 2}) {
    job.seed = seed;
    Runtime runtime(test_runtime(1, Bytes(64 << 20)));
    EXPECT_TRUE(torch::equal(weight(runtime.submit(job).weights(), "0.weight"), before));
  }
  job.schedule.peak = 0.1;
  Runtime runtime(test_runtime(1, Bytes(64 << 20)));
  EXPECT_FALSE(torch::equal(weight(runtime.submit(job).weights(), "0.weight"), before));
  EXPECT_TRUE(torch::equal(net[0]->as<nn::Linear>()->weight.detach(), before));
}

TEST(WrapTest, TrainsAsThePlainSequentialDoes) {
  nn::Sequential net = small_net();
  const auto model = wrap("net", net);
  model->add("loss", mean_squared_error_loss());
  JobOptions job = job_of(model, 3);
  job.micro_batch_size = 0;
  job.optimizer = SgdOptions{};
  job.schedule.peak = 0.05;
  const auto trained = plain(job).weights;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch = job.data->batch(step);
    optimizer.zero_grad();
    torch::mse_loss(net->forward(batch.inputs[0]), batch.side[0].second).backward();
    optimizer.step();
  }
  EXPECT_TRUE(torch::allclose(weight(trained, "3.weight"), net[3]->as<nn::Linear>()->weight));
  EXPECT_TRUE(torch::allclose(weight(trained, "1.running_mean"),
                              net[1]->as<nn::BatchNorm1d>()->running_mean));
}

TEST(WrapTest, NamesOfModulesAreNamesOfLayers) {
  const auto model = wrap("net", nn::Sequential({{"in", nn::AnyModule(nn::Linear(2, 2))},
                                                 {"out", nn::AnyModule(nn::Linear(2, 2))}}));
  ASSERT_EQ(model->layers().size(), 2U);
  EXPECT_EQ(model->layers()[0].name, "in");
  EXPECT_EQ(model->layers()[1].name, "out");
}

TEST(WrapTest, AModuleThatStandsInItTwiceIsOne) {
  const nn::Linear shared(8, 8);
  const auto model = wrap("net", nn::Sequential(shared, nn::Tanh(), shared, nn::Linear(8, 4)));
  model->add("loss", mean_squared_error_loss());
  ASSERT_EQ(model->ties().size(), 2U);
  const JobOptions job = job_of(model, 4);
  Runtime runtime(test_runtime(2, smallest_budget(job)));
  const JobHandle handle = runtime.submit(job);
  expect_plain_bits(handle, plain(job));
  EXPECT_EQ(handle.weights().size(), 4U);
}

TEST(WrapTest, WhatCannotBeWrappedIsRefusedByName) {
  const auto refusal = [](const nn::Sequential& modules) -> std::string {
    try {
      wrap("net", modules);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no refusal";
  };
  EXPECT_NE(refusal(nn::Sequential()).find("has no modules"), std::string::npos);
  const nn::BatchNorm1d norm(4);
  EXPECT_NE(
      refusal(nn::Sequential(norm, norm)).find("buffer 0.running_mean is also 1.running_mean"),
      std::string::npos);
  EXPECT_NE(refusal(nn::Sequential(OneLinearTwice())).find("0.a.weight is also 0.b.weight"),
            std::string::npos);
  EXPECT_NE(refusal(nn::Sequential(NoCopies())).find("\"0\" of a Sequential cannot be copied"),
            std::string::npos);
}

TEST(WrapTest, TorchsOwnDropoutIsRefusedByName) {
  const auto model = wrap("net", nn::Sequential(nn::Linear(8, 4), nn::Dropout(0.5)));
  model->add("loss", mean_squared_error_loss());
  Runtime runtime(test_runtime(1, Bytes(64 << 20)));
  try {
    runtime.submit(job_of(model, 1));
    FAIL() << "it was taken";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("\"1\""), std::string::npos) << error.what();
  }
}

TEST(LossTest, AFunctionIsALastLayer) {
  const auto model = wrap("net", nn::Sequential(nn::Linear(8, 4)));
  model->add("loss", loss([](const Tensors& outputs, LayerContext& context) {
               return (outputs[0] - context.side("targets")).abs().sum() /
                      context.loss_denominator();
             }));
  const JobOptions job = job_of(model, 3);
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  expect_plain_bits(runtime.submit(job), plain(job));
  EXPECT_THROW(loss(nullptr), InvalidArgument);
}

}  // namespace
}  // namespace hydra
