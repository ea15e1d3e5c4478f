// Budgets hold, predictions are near, and everything comes back.

#include "engine_fixture.h"
#include "hydra/data/text.h"
#include "hydra/testing/random_data.h"

namespace hydra {
namespace {

using testing::small_job;
using testing::small_job_names;

TEST(BudgetTest, DeviceBytesNeverExceedTheBudgetAndThePredictionIsWithinFivePercent) {
  Gpt2Options options = testing::tiny_gpt2_options();
  options.layers = 4;
  options.width = 64;
  options.context = 64;
  options.vocabulary_size = 512;
  JobOptions job = small_job("gpt2", 50, 3);
  job.model = make_gpt2(options);
  job.data = std::make_shared<testing::RandomTokens>(
      testing::RandomTokens::Options{.seed = 1, .rows = 4, .tokens = 64, .vocabulary_size = 512});
  job.micro_batch_size = 1;
  const Bytes smallest = smallest_budget(job);
  for (const int percent : {100, 130, 160}) {
    Runtime runtime(test_runtime(1, Bytes(smallest.count() * percent / 100)));
    const JobHandle handle = runtime.submit(job);
    handle.get();
    const Plan& plan = handle.plan();
    SCOPED_TRACE(percent);
    EXPECT_GT(plan.shards.size(), 1U);
    // Peak of the whole run, prefetches included: never above the budget.
    const DeviceStats stats = runtime.device_stats()[0];
    EXPECT_LE(stats.peak_in_use, plan.device_budget);
    EXPECT_LE(stats.held, plan.device_budget);
    if (percent == 100) {
      // Nothing but what is required fits, so the measured peak is the required peak.
      const double ratio = static_cast<double>(plan.predicted_peak.count()) /
                           static_cast<double>(stats.peak_in_use.count());
      EXPECT_GT(ratio, 0.95);
      EXPECT_LT(ratio, 1.05);
    }
  }
}

TEST(BudgetTest, BudgetsBalanceToZeroAfterSuccess) {
  Runtime runtime(test_runtime(2, Bytes(1 << 20)));
  for (const std::string& name : small_job_names()) runtime.submit(small_job(name, 51, 2));
  runtime.wait_all();
  for (const DeviceStats& device : runtime.device_stats()) EXPECT_EQ(device.in_use, Bytes(0));
}

TEST(BudgetTest, ACompletedJobsHostMemoryGoesWithItsLastHandle) {
  auto runtime = std::make_unique<Runtime>(test_runtime(1, Bytes(1 << 20)));
  const JobHandle handle = runtime->submit(small_job("gpt2", 52, 2));
  handle.get();
  EXPECT_LT(runtime->host_budget().reserved(), handle.plan().host_state);
  EXPECT_GT(runtime->host_budget().reserved(), Bytes(0));
  runtime.reset();
  EXPECT_EQ(handle.weights().empty(), false);  // outlives the runtime
}

TEST(BudgetTest, AJobRunsWithExactlyItsPlansHostBytesAndIsRefusedWithOneLess) {
  for (const bool clip : {false, true}) {
    for (const std::string& name : small_job_names()) {
      SCOPED_TRACE(name + (clip ? ", clipped" : ""));
      JobOptions job = small_job(name, 55, 2);
      if (clip) job.max_gradient_norm = 0.1;
      RuntimeOptions options = test_runtime(1, smallest_budget(job));
      const Plan plan = Runtime(options).plan(job);
      options.host_memory = plan.host_state + plan.host_step;
      Runtime enough(options);
      expect_plain_bits(enough.submit(job), plain(job));
      EXPECT_EQ(enough.host_budget().peak(), options.host_memory);
      options.host_memory -= Bytes(1);
      Runtime less(options);
      EXPECT_THROW(less.submit(job), OutOfHostMemory);
    }
  }
}

TEST(BudgetTest, AFailedOrCancelledJobGivesAllItsHostMemoryBack) {
  Runtime runtime(test_runtime(1, Bytes(1 << 20)));
  JobOptions failing = small_job("mlp", 53, 5);
  failing.model = testing::throwing_model(1);
  EXPECT_EQ(runtime.submit(failing).wait(), JobState::kFailed);
  const JobHandle cancelled = runtime.submit(small_job("gpt2", 54, 100000));
  cancelled.cancel();
  EXPECT_EQ(cancelled.wait(), JobState::kCancelled);
  EXPECT_EQ(runtime.host_budget().reserved(), Bytes(0));
  EXPECT_EQ(runtime.device_stats()[0].in_use, Bytes(0));
}

}  // namespace
}  // namespace hydra
