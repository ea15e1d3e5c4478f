#include "hydra/testing/plain_loop.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <stdexcept>

#include "hydra/core/error.h"
#include "hydra/model/layer.h"
#include "hydra/testing/small_models.h"

namespace hydra::testing {
namespace {

at::Tensor weight(const PlainResult& result, const std::string& name) {
  for (const auto& [given, value] : result.weights) {
    if (given == name) return value;
  }
  throw std::out_of_range(name);
}

bool same_weights(const PlainResult& a, const PlainResult& b) {
  if (a.weights.size() != b.weights.size()) return false;
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    if (a.weights[i].first != b.weights[i].first) return false;
    if (!torch::equal(a.weights[i].second, b.weights[i].second)) return false;
  }
  return true;
}

TEST(PlainLoopTest, EverySmallJobIsDeterministic) {
  for (const std::string& name : small_job_names()) {
    SCOPED_TRACE(name);
    const JobOptions job = small_job(name, 3, 3);
    const PlainResult first = plain_loop(job);
    const PlainResult second = plain_loop(job);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_TRUE(same_weights(first, second));
  }
}

TEST(PlainLoopTest, NoStepsGiveTheInitialWeights) {
  const JobOptions job = small_job("mlp", 3, 0);
  const auto layer = make_layer(*job.model, 1, job.seed);
  EXPECT_TRUE(torch::equal(weight(plain_loop(job), "fc1.weight"),
                           layer->named_parameters()["weight"].detach()));
}

TEST(PlainLoopTest, InitialWeightsReplaceTheFactories) {
  JobOptions job = small_job("conv_net", 3, 2);
  const PlainResult first = plain_loop(job);
  job.initial_weights = std::make_shared<Weights>(first.weights);
  job.max_steps = 0;
  EXPECT_TRUE(same_weights(plain_loop(job), first));
}

TEST(PlainLoopTest, TiedParameterIsListedOnceUnderItsOwner) {
  const PlainResult result = plain_loop(small_job("gpt2", 3, 1));
  EXPECT_NO_THROW(weight(result, "embedding.wte.weight"));
  EXPECT_THROW(weight(result, "head.weight"), std::out_of_range);
}

TEST(PlainLoopTest, FrozenParametersKeepTheirBitsAndLeaveTheNorm) {
  JobOptions job = small_job("gpt2", 3, 3);
  job.max_gradient_norm = 1e9;
  const PlainResult free = plain_loop(job);
  const auto frozen_model = make_gpt2(tiny_gpt2_options());
  frozen_model->freeze("block0.*").freeze("embedding.wte.weight").freeze("head.weight");
  job.model = frozen_model;
  const PlainResult frozen = plain_loop(job);
  job.max_steps = 0;
  const PlainResult initial = plain_loop(job);
  for (const char* name : {"block0.mlp.c_fc.weight", "embedding.wte.weight"}) {
    EXPECT_TRUE(torch::equal(weight(frozen, name), weight(initial, name))) << name;
    EXPECT_FALSE(torch::equal(weight(free, name), weight(initial, name))) << name;
  }
  EXPECT_FALSE(
      torch::equal(weight(frozen, "block1.ln_1.weight"), weight(initial, "block1.ln_1.weight")));
  EXPECT_GT(frozen.gradient_norms[0], 0);
  EXPECT_LT(frozen.gradient_norms[0], free.gradient_norms[0]);
}

TEST(PlainLoopTest, ClippingBeyondTheNormLeavesTheBits) {
  JobOptions job = small_job("gpt2", 3, 3);
  const PlainResult without = plain_loop(job);
  EXPECT_EQ(without.gradient_norms, (std::vector<double>{0, 0, 0}));
  job.max_gradient_norm = 1e9;
  const PlainResult beyond = plain_loop(job);
  EXPECT_EQ(beyond.gradient_norms.size(), 3U);
  EXPECT_TRUE(same_weights(without, beyond));
  job.max_gradient_norm = 1e-3;
  EXPECT_FALSE(same_weights(without, plain_loop(job)));
}

TEST(PlainLoopTest, BatchNormChangesOncePerMicroBatch) {
  const PlainResult result = plain_loop(small_job("conv_net", 3, 3));
  // 8 rows in micro-batches of 2, three steps.
  EXPECT_EQ(weight(result, "conv0.norm.num_batches_tracked").item<std::int64_t>(), 12);
  EXPECT_GT(weight(result, "conv0.norm.running_mean").abs().sum().item<float>(), 0.0F);
}

TEST(PlainLoopTest, UnusedBranchIsLeftUntouched) {
  const PlainResult one = plain_loop(small_job("unused_branch", 3, 1));
  const PlainResult two = plain_loop(small_job("unused_branch", 3, 2));
  const PlainResult three = plain_loop(small_job("unused_branch", 3, 3));
  // Weight decay alone would change it if it were updated on step 1.
  EXPECT_TRUE(torch::equal(weight(one, "branch.odd"), weight(two, "branch.odd")));
  EXPECT_FALSE(torch::equal(weight(two, "branch.odd"), weight(three, "branch.odd")));
  EXPECT_FALSE(
      torch::equal(weight(one, "branch.always.weight"), weight(two, "branch.always.weight")));
}

TEST(PlainLoopTest, MicroBatchesAddUpToTheMiniBatch) {
  JobOptions job = small_job("gpt2", 3, 3);
  Gpt2Options options = tiny_gpt2_options();
  options.dropout = 0.0;
  job.model = make_gpt2(options);
  job.optimizer = SgdOptions{};
  job.micro_batch_size = 0;
  const PlainResult whole = plain_loop(job);
  for (const std::int64_t size : {1, 2, 3, 4, 100}) {
    job.micro_batch_size = size;
    const PlainResult cut = plain_loop(job);
    for (std::size_t i = 0; i < whole.weights.size(); ++i) {
      // The same sums in another order.
      EXPECT_TRUE(torch::allclose(whole.weights[i].second, cut.weights[i].second, 1e-5, 1e-7));
    }
  }
}

TEST(PlainLoopTest, GroupsAndScheduleReachTheirParameters) {
  JobOptions job = small_job("mlp", 3, 1);
  job.groups = {{"fc0.*", 0.0, 0.0}};
  const PlainResult result = plain_loop(job);
  job.max_steps = 0;
  const PlainResult initial = plain_loop(job);
  EXPECT_TRUE(torch::equal(weight(result, "fc0.weight"), weight(initial, "fc0.weight")));
  EXPECT_FALSE(torch::equal(weight(result, "fc1.weight"), weight(initial, "fc1.weight")));
}

TEST(PlainLoopTest, NanLossAndThrowingLayerEndTheRun) {
  JobOptions job = small_job("mlp", 3, 5);
  job.model = nan_model(2);
  EXPECT_THROW(plain_loop(job), NonFinite);
  job.model = throwing_model(2);
  EXPECT_THROW(plain_loop(job), std::runtime_error);
  job.max_steps = 2;
  EXPECT_NO_THROW(plain_loop(job));
}

TEST(FingerprintTest, CoversParametersAndNotBuffers) {
  const JobOptions job = small_job("conv_net", 3, 1);
  PlainResult result = plain_loop(job);
  const std::string before = fingerprint(result.weights, *job.model);
  weight(result, "conv0.norm.running_mean").add_(1.0);
  EXPECT_EQ(fingerprint(result.weights, *job.model), before);
  weight(result, "conv0.norm.weight").add_(1.0);
  EXPECT_NE(fingerprint(result.weights, *job.model), before);
  result.weights.clear();
  EXPECT_THROW(fingerprint(result.weights, *job.model), InvalidArgument);
}

}  // namespace
}  // namespace hydra::testing
