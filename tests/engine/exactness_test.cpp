// The contract: the engine's parameters are the plain in-memory loop's, bit for bit.

#include <ATen/Parallel.h>

#include <memory>

#include "engine_fixture.h"

namespace hydra {
namespace {

using testing::small_job;
using testing::small_job_names;

class ExactnessTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ExactnessTest, OneModelShardedAtTheSmallestBudgetEqualsThePlainLoop) {
  const JobOptions job = small_job(GetParam(), 7, 5);
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  const JobHandle handle = runtime.submit(job);
  EXPECT_GT(handle.plan().shards.size(), 1U);
  EXPECT_FALSE(handle.plan().fits_device);
  expect_plain_bits(handle, plain(job));
}

TEST_P(ExactnessTest, OneModelThatFitsItsDeviceEqualsThePlainLoop) {
  const JobOptions job = small_job(GetParam(), 8, 5);
  Runtime runtime(test_runtime(1, Bytes(64 << 20)));
  const JobHandle handle = runtime.submit(job);
  EXPECT_TRUE(handle.plan().fits_device);
  expect_plain_bits(handle, plain(job));
}

TEST_P(ExactnessTest, EveryBudgetBetweenGivesTheSameBits) {
  const JobOptions job = small_job(GetParam(), 9, 3);
  const auto expected = plain(job);
  const Bytes smallest = smallest_budget(job);
  for (const int percent : {105, 120, 150, 200, 300}) {
    Runtime runtime(test_runtime(1, Bytes(smallest.count() * percent / 100)));
    SCOPED_TRACE(percent);
    expect_plain_bits(runtime.submit(job), expected);
  }
}

TEST_P(ExactnessTest, MicroBatchesOfOneToAllRowsEqualThePlainLoop) {
  for (const std::int64_t rows : {0, 1, 2, 3}) {
    JobOptions job = small_job(GetParam(), 10, 3);
    job.micro_batch_size = rows;
    Runtime runtime(test_runtime(1, smallest_budget(job)));
    SCOPED_TRACE(rows);
    expect_plain_bits(runtime.submit(job), plain(job));
  }
}

TEST_P(ExactnessTest, ClippingEqualsThePlainLoopShardedAndResident) {
  JobOptions job = small_job(GetParam(), 11, 5);
  job.max_gradient_norm = 0.05;
  const auto expected = plain(job);
  for (const Bytes budget : {smallest_budget(job), Bytes(64 << 20)}) {
    Runtime runtime(test_runtime(1, budget));
    const JobHandle handle = runtime.submit(job);
    expect_plain_bits(handle, expected);
    const auto metrics = handle.metrics();
    ASSERT_EQ(metrics.size(), expected.gradient_norms.size());
    for (std::size_t i = 0; i < metrics.size(); ++i) {
      EXPECT_EQ(metrics[i].gradient_norm, expected.gradient_norms[i]);
    }
  }
}

TEST_P(ExactnessTest, SgdWithMomentumEqualsThePlainLoop) {
  JobOptions job = small_job(GetParam(), 12, 4);
  job.optimizer = SgdOptions{.momentum = 0.9, .weight_decay = 0.01};
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  expect_plain_bits(runtime.submit(job), plain(job));
}

TEST_P(ExactnessTest, FourModelsInterleavedOnOneToThreeDevicesEqualEachAlone) {
  std::vector<JobOptions> jobs;
  std::vector<testing::PlainResult> expected;
  for (int i = 0; i < 4; ++i) {
    jobs.push_back(small_job(GetParam(), 20 + static_cast<std::uint64_t>(i), 4));
    jobs.back().schedule.peak = 1e-3 * (i + 1);
    expected.push_back(plain(jobs.back()));
  }
  const Bytes smallest = smallest_budget(jobs[0]);
  for (int devices = 1; devices <= 3; ++devices) {
    for (const int percent : {100, 180}) {
      Runtime runtime(test_runtime(devices, Bytes(smallest.count() * percent / 100)));
      std::vector<JobHandle> handles;
      for (const JobOptions& job : jobs) handles.push_back(runtime.submit(job));
      for (std::size_t i = 0; i < handles.size(); ++i) {
        SCOPED_TRACE(std::to_string(devices) + " devices, job " + std::to_string(i));
        expect_plain_bits(handles[i], expected[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SmallModels, ExactnessTest, ::testing::ValuesIn(small_job_names()),
                         [](const auto& info) { return info.param; });

TEST(ExactnessTest, FrozenLayersKeepTheirBitsAndTheRestEqualsThePlainLoop) {
  JobOptions job = small_job("gpt2", 30, 4);
  auto model = make_gpt2(testing::tiny_gpt2_options());
  model->freeze("embedding.*").freeze("block0.*");
  job.model = model;
  const auto expected = plain(job);
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  expect_plain_bits(runtime.submit(job), expected);
}

TEST(ExactnessTest, HandMadeCutsGiveTheSameBits) {
  JobOptions job = small_job("gpt2", 31, 4);
  const auto expected = plain(job);
  for (const char* cut : {"block0", "block1", "head"}) {
    auto model = make_gpt2(testing::tiny_gpt2_options());
    model->cut_before(cut);
    job.model = model;
    Runtime runtime(test_runtime(1, Bytes(64 << 20)));
    const JobHandle handle = runtime.submit(job);
    EXPECT_EQ(handle.plan().shards.size(), 2U);
    expect_plain_bits(handle, expected);
  }
}

TEST(ExactnessTest, ParameterGroupsEqualThePlainLoop) {
  JobOptions job = small_job("gpt2", 32, 4);
  job.groups = {{"*.ln_*", 0.5, 0.0}, {"block1.*", 2.0, 0.1}};
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  expect_plain_bits(runtime.submit(job), plain(job));
}

TEST(ExactnessTest, AFineTuneStartsFromAnotherJobsWeights) {
  const JobOptions base = small_job("gpt2", 33, 3);
  Runtime runtime(test_runtime(2, smallest_budget(base)));
  const auto weights = std::make_shared<Weights>(runtime.submit(base).weights());
  JobOptions tune = small_job("gpt2", 34, 3);
  tune.initial_weights = weights;
  expect_plain_bits(runtime.submit(tune), plain(tune));
}

TEST(ExactnessTest, FingerprintIsThePlainLoops) {
  const JobOptions job = small_job("gpt2", 35, 2);
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  EXPECT_EQ(runtime.submit(job).parameters_sha256(),
            testing::fingerprint(plain(job).weights, *job.model));
}

TEST(ExactnessTest, MixedModelsOnUnequalDevicesEqualEachAlone) {
  RuntimeOptions options = test_runtime(2, Bytes(0));
  std::vector<JobOptions> jobs;
  Bytes largest;
  for (const std::string& name : small_job_names()) {
    jobs.push_back(small_job(name, 36, 3));
    largest = std::max(largest, smallest_budget(jobs.back()));
  }
  options.devices[0].memory = largest;
  options.devices[1].memory = Bytes(largest.count() * 3);
  Runtime runtime(std::move(options));
  std::vector<JobHandle> handles;
  for (const JobOptions& job : jobs) handles.push_back(runtime.submit(job));
  for (std::size_t i = 0; i < jobs.size(); ++i) expect_plain_bits(handles[i], plain(jobs[i]));
}

}  // namespace
}  // namespace hydra
