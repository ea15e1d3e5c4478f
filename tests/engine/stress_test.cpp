// Random delays, poison, early eviction and reversed order must neither change a bit nor stop
// anything. A few seeds in the everyday run, 200 with HYDRA_LONG.

#include <map>
#include <optional>
#include <thread>

#include "engine_fixture.h"
#include "hydra/core/random.h"
#include "kept_log.h"

namespace hydra {
namespace {

using testing::small_job;
using testing::small_job_names;

int seeds(int everyday) { return long_run() ? 200 : everyday; }

/// Small budgets and expected bits, computed once per model.
struct Expected {
  Bytes smallest;
  std::vector<JobOptions> jobs;
  std::vector<testing::PlainResult> results;
};

const Expected& expected_of(const std::string& name, bool clip) {
  static auto& known = *new std::map<std::string, Expected>;
  Expected& entry = known[name + (clip ? "+clip" : "")];
  if (!entry.jobs.empty()) return entry;
  for (std::uint64_t i = 0; i < 4; ++i) {
    JobOptions job = small_job(name, 100 + i, 3);
    if (clip) job.max_gradient_norm = 0.1;
    entry.results.push_back(plain(job));
    entry.jobs.push_back(std::move(job));
  }
  entry.smallest = smallest_budget(entry.jobs[0]);
  return entry;
}

RuntimeOptions hostile_runtime(std::uint64_t seed, int devices, Bytes smallest) {
  SplitMix64 random(seed);
  RuntimeOptions options = test_runtime(
      devices,
      Bytes(smallest.count() * (100 + static_cast<std::int64_t>(random.below(150))) / 100));
  for (auto& device : options.devices) {
    device.faults.delay_seed = random.next();
    device.faults.largest_delay = std::chrono::microseconds(200);
    device.faults.poison_on_release = true;
  }
  options.debug.evict_at_once = random.below(2) == 0;
  options.debug.reverse_ready_order = random.below(2) == 0;
  options.update_threads = 1 + static_cast<int>(random.below(2));
  return options;
}

TEST(StressTest, HostileTimingLeavesEveryBitUnchanged) {
  for (int seed = 0; seed < seeds(12); ++seed) {
    const auto& name = small_job_names()[static_cast<std::size_t>(seed) % small_job_names().size()];
    const Expected& expected = expected_of(name, seed % 2 == 1);
    Runtime runtime(
        hostile_runtime(static_cast<std::uint64_t>(seed), 1 + seed % 3, expected.smallest));
    std::vector<JobHandle> handles;
    for (const JobOptions& job : expected.jobs) handles.push_back(runtime.submit(job));
    for (std::size_t i = 0; i < handles.size(); ++i) {
      SCOPED_TRACE(name + ", seed " + std::to_string(seed) + ", job " + std::to_string(i));
      expect_plain_bits(handles[i], expected.results[i]);
    }
  }
}

TEST(StressTest, EightJobsOnThreeDevicesAtMinimumBudgetsAllComplete) {
  const Expected& expected = expected_of("gpt2", false);
  for (int seed = 0; seed < seeds(10); ++seed) {
    RuntimeOptions options =
        hostile_runtime(static_cast<std::uint64_t>(seed) + 1000, 3, expected.smallest);
    for (auto& device : options.devices) device.memory = expected.smallest;
    // Host memory for the states and one step alone: jobs take turns at their steps' borders.
    Bytes host;
    {
      Runtime planning(test_runtime(1, expected.smallest));
      const Plan plan = planning.plan(expected.jobs[0]);
      host = plan.host_state * 8 + plan.host_step;
    }
    options.host_memory = host;
    Runtime runtime(std::move(options));
    std::vector<JobHandle> handles;
    for (int i = 0; i < 8; ++i) {
      handles.push_back(runtime.submit(expected.jobs[static_cast<std::size_t>(i) % 4]));
    }
    for (std::size_t i = 0; i < handles.size(); ++i) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", job " + std::to_string(i));
      expect_plain_bits(handles[i], expected.results[i % 4]);
    }
  }
}

TEST(StressTest, MoreJobsThanHostMemoryHoldsRunOneAfterAnother) {
  const Expected& expected = expected_of("gpt2", true);
  RuntimeOptions options = test_runtime(2, expected.smallest);
  {
    Runtime planning(test_runtime(1, expected.smallest));
    const Plan plan = planning.plan(expected.jobs[0]);
    options.host_memory = plan.host_state + plan.host_step;
  }
  Runtime runtime(std::move(options));
  for (std::size_t i = 0; i < expected.jobs.size(); ++i) {
    // A completed job's weights stay in host memory while a handle lives, so each is let go.
    const JobHandle handle = runtime.submit(expected.jobs[i]);
    ASSERT_EQ(handle.wait(), JobState::kCompleted);
  }
}

TEST(StressTest, AQueuedJobStartsWhenTheLastHandleOfAFinishedOneGoes) {
  const Expected& expected = expected_of("gpt2", true);
  RuntimeOptions options = test_runtime(1, expected.smallest);
  {
    Runtime planning(test_runtime(1, expected.smallest));
    const Plan plan = planning.plan(expected.jobs[0]);
    options.host_memory = plan.host_state + plan.host_step;
  }
  const auto log = std::make_shared<KeptLog>();
  options.log = log;
  Runtime runtime(std::move(options));
  std::optional<JobHandle> first = runtime.submit(expected.jobs[0]);
  const JobHandle second = runtime.submit(expected.jobs[1]);
  ASSERT_EQ(first->wait(), JobState::kCompleted);
  EXPECT_EQ(second.status().state, JobState::kQueued);
  const auto tells = [&] { return second.status().reason.find("drop the handles"); };
  for (int i = 0; i < 10000 && tells() == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_NE(tells(), std::string::npos) << second.status().reason;
  // Once when only the handle is left and, if it was looked at earlier, while the other runs.
  ASSERT_LE(log->lines().size(), 2U);
  EXPECT_NE(log->lines()[0].find(second.name() + "\" waits for"), std::string::npos);
  first.reset();
  expect_plain_bits(second, expected.results[1]);
}

TEST(StressTest, CancellingAtAnyMomentBalancesTheBudgets) {
  const Expected& expected = expected_of("gpt2", false);
  for (int seed = 0; seed < seeds(20); ++seed) {
    SplitMix64 random(static_cast<std::uint64_t>(seed) + 2000);
    Runtime runtime(hostile_runtime(static_cast<std::uint64_t>(seed) + 3000, 2, expected.smallest));
    std::vector<JobHandle> handles;
    for (const JobOptions& job : expected.jobs) handles.push_back(runtime.submit(job));
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(20000)));
    handles[1].cancel();
    handles[2].cancel();
    EXPECT_NE(handles[1].wait(), JobState::kFailed);
    EXPECT_NE(handles[2].wait(), JobState::kFailed);
    expect_plain_bits(handles[0], expected.results[0]);
    expect_plain_bits(handles[3], expected.results[3]);
    for (const DeviceStats& device : runtime.device_stats()) {
      EXPECT_EQ(device.in_use, Bytes(0)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace hydra
