// Fewer jobs than devices: the shards of a job roll over the devices, a micro-batch apart, and the
// bits are those of the plain loop.

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "engine_fixture.h"
#include "kept_trace.h"

namespace hydra {
namespace {

using testing::small_job;

JobOptions rolling_job(const std::string& name, std::uint64_t seed) {
  JobOptions job = small_job(name, seed, 3);
  job.micro_batch_size = 1;
  return job;
}

/// How many units begin while another of the same job is at work on another device.
std::int64_t overlaps(const KeptTrace& trace, const std::string& job) {
  std::vector<TraceEvent> units = trace.of(TraceEvent::Kind::kSpan, "unit");
  std::erase_if(units, [&](const TraceEvent& u) { return !u.name.starts_with(job + " "); });
  std::int64_t count = 0;
  for (const TraceEvent& later : units) {
    count += std::any_of(units.begin(), units.end(), [&](const TraceEvent& earlier) {
      return earlier.track != later.track && earlier.start < later.start &&
             later.start < earlier.start + earlier.duration;
    });
  }
  return count;
}

class RollTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RollTest, OneJobOnTwoToFourDevicesOverlapsItsUnitsAndKeepsThePlainLoopsBits) {
  for (const bool deferred : {false, true}) {
    JobOptions job = rolling_job(GetParam(), 90);
    if (deferred) job.max_gradient_norm = 0.05;
    const auto expected = plain(job);
    const Bytes budget = smallest_budget(job);
    for (const int devices : {2, 3, 4}) {
      SCOPED_TRACE(std::to_string(devices) + (deferred ? " devices, deferred" : " devices, eager"));
      RuntimeOptions options = test_runtime(devices, budget);
      const auto trace = std::make_shared<KeptTrace>();
      options.trace = trace;
      Runtime runtime(std::move(options));
      const JobHandle handle = runtime.submit(job);
      expect_plain_bits(handle, expected);
      if (handle.plan().shards.size() > 1) {
        EXPECT_GT(overlaps(*trace, job.name), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RollTest, ::testing::ValuesIn(testing::small_job_names()),
                         [](const auto& info) { return info.param; });

TEST(RollingTest, AJobRollsOnceTheOthersAreDone) {
  JobOptions tail = rolling_job("gpt2", 91);
  tail.max_steps = 6;
  JobOptions brief = rolling_job("gpt2", 92);
  brief.name = "brief";
  brief.max_steps = 1;
  const auto expected = plain(tail);
  RuntimeOptions options = test_runtime(2, smallest_budget(tail));
  const auto trace = std::make_shared<KeptTrace>();
  options.trace = trace;
  Runtime runtime(std::move(options));
  const JobHandle other = runtime.submit(brief);
  const JobHandle handle = runtime.submit(tail);
  expect_plain_bits(handle, expected);
  expect_plain_bits(other, plain(brief));
  EXPECT_GT(overlaps(*trace, tail.name), 0);
}

TEST(RollingTest, UnitsOfOneMicroBatchDoNotRoll) {
  JobOptions job = rolling_job("gpt2", 93);
  job.micro_batch_size = 0;  // the whole batch at once
  RuntimeOptions options = test_runtime(2, smallest_budget(job));
  const auto trace = std::make_shared<KeptTrace>();
  options.trace = trace;
  Runtime runtime(std::move(options));
  expect_plain_bits(runtime.submit(job), plain(job));
  EXPECT_EQ(overlaps(*trace, job.name), 0);
}

// Whatever unit runs out of memory, those behind it fail with it and run again.
TEST(RollingTest, AnyAllocationThatFailsOnceLeavesTheBitsAsTheyWere) {
  const JobOptions job = rolling_job("mlp", 94);
  const auto expected = plain(job);
  const Bytes smallest = smallest_budget(job);
  int completed = 0;
  for (std::int64_t n = 0; completed < 40; n += 3) {
    ASSERT_LT(n, 6000);
    RuntimeOptions options = test_runtime(3, smallest);
    options.devices[static_cast<std::size_t>(n) % 3].faults.fail_allocation = n;
    Runtime runtime(std::move(options));
    try {
      const JobHandle handle = runtime.submit(job);
      expect_plain_bits(handle, expected);
      ++completed;
    } catch (const Error&) {  // the pilot met it
      EXPECT_TRUE(runtime.jobs().empty());
    }
    for (const DeviceStats& device : runtime.device_stats())
      EXPECT_EQ(device.in_use, Bytes(0)) << n;
    EXPECT_EQ(runtime.host_budget().reserved(), Bytes(0)) << "allocation " << n;
  }
}

TEST(RollingTest, AnyCopyThatFailsCostsTheRightBitsOrTheJobAndNoMemory) {
  const JobOptions job = rolling_job("mlp", 95);
  const auto expected = plain(job);
  const Bytes smallest = smallest_budget(job);
  int completed_in_a_row = 0;
  const std::int64_t stride = long_run() ? 1 : 7;
  for (std::int64_t n = 0; completed_in_a_row < 20; n += stride) {
    ASSERT_LT(n, 2000);
    RuntimeOptions options = test_runtime(3, smallest);
    options.devices[static_cast<std::size_t>(n) % 3].faults.fail_copy = n / 3;
    Runtime runtime(std::move(options));
    const JobHandle handle = runtime.submit(job);
    if (handle.wait() == JobState::kCompleted) {
      expect_plain_bits(handle, expected);
      ++completed_in_a_row;
    } else {
      EXPECT_THROW(handle.get(), DeviceError) << "copy " << n;
      completed_in_a_row = 0;
    }
    for (const DeviceStats& device : runtime.device_stats())
      EXPECT_EQ(device.in_use, Bytes(0)) << n;
  }
}

TEST(RollingTest, OneAndTwoJobsOnThreeSlowAndErraticDevicesKeepThePlainLoopsBits) {
  std::vector<JobOptions> jobs = {rolling_job("gpt2", 96), rolling_job("gpt2", 97)};
  jobs[1].max_gradient_norm = 0.1;
  const std::vector<testing::PlainResult> expected = {plain(jobs[0]), plain(jobs[1])};
  const Bytes smallest = std::max(smallest_budget(jobs[0]), smallest_budget(jobs[1]));
  for (int seed = 0; seed < (long_run() ? 200 : 10); ++seed) {
    RuntimeOptions options = test_runtime(3, smallest);
    for (std::size_t d = 0; d < options.devices.size(); ++d) {
      options.devices[d].faults.delay_seed = static_cast<std::uint64_t>(seed) * 3 + d;
      options.devices[d].faults.largest_delay = std::chrono::microseconds(400);
      options.devices[d].faults.poison_on_release = true;
    }
    options.debug.evict_at_once = seed % 2 == 1;
    options.debug.reverse_ready_order = seed % 3 == 1;
    Runtime runtime(std::move(options));
    std::vector<JobHandle> handles;
    for (int i = 0; i <= seed % 2; ++i) {
      handles.push_back(runtime.submit(jobs[static_cast<std::size_t>(i)]));
    }
    for (std::size_t i = 0; i < handles.size(); ++i) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      expect_plain_bits(handles[i], expected[i]);
    }
  }
}

TEST(RollingTest, CancellingARollingJobAtAnyMomentBalancesTheBudgets) {
  JobOptions job = rolling_job("gpt2", 98);
  job.max_steps = 50;
  const Bytes smallest = smallest_budget(job);
  for (int seed = 0; seed < (long_run() ? 200 : 15); ++seed) {
    Runtime runtime(test_runtime(3, smallest));
    {
      const JobHandle handle = runtime.submit(job);
      std::this_thread::sleep_for(std::chrono::microseconds(700 * seed));
      handle.cancel();
      handle.wait();
    }
    for (const DeviceStats& device : runtime.device_stats()) {
      EXPECT_EQ(device.in_use, Bytes(0)) << seed;
    }
    EXPECT_EQ(runtime.host_budget().reserved(), Bytes(0)) << seed;
  }
}

}  // namespace
}  // namespace hydra
