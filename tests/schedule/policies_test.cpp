#include <gtest/gtest.h>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/schedule/policy.h"
#include "hydra/schedule/time_model.h"

namespace hydra {
namespace {

JobView job(std::int64_t id, std::int64_t remaining_ns, std::int64_t last_device = -1) {
  JobView view;
  view.id = JobId(id);
  view.remaining = Nanoseconds(remaining_ns);
  view.last_device = DeviceId(last_device);
  return view;
}

std::size_t chosen(const Policy& policy, const std::vector<JobView>& jobs) {
  return policy.choose({DeviceId(0), jobs})->job;
}

TEST(PolicyTest, LrtfChoosesTheLongestRemainingOfRandomJobs) {
  const auto policy = make_sharded_lrtf_policy();
  SplitMix64 random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<JobView> jobs;
    for (std::uint64_t i = 0; i < 1 + random.below(10); ++i) {
      jobs.push_back(
          job(static_cast<std::int64_t>(i), static_cast<std::int64_t>(random.below(1000))));
    }
    const std::size_t first = chosen(*policy, jobs);
    for (const JobView& other : jobs) EXPECT_GE(jobs[first].remaining, other.remaining);
    EXPECT_EQ(chosen(*policy, jobs), first);
  }
}

TEST(PolicyTest, LrtfKeepsAJobOnItsDeviceWithinTheMargin) {
  const auto policy = make_sharded_lrtf_policy(0.05);
  EXPECT_EQ(chosen(*policy, {job(0, 1000), job(1, 960, 0)}), 1U);
  EXPECT_EQ(chosen(*policy, {job(0, 1000), job(1, 940, 0)}), 0U);
  EXPECT_EQ(chosen(*policy, {job(0, 1000), job(1, 960, 1)}), 0U);
}

TEST(PolicyTest, LrtfBreaksTiesByMissingBytesThenAge) {
  const auto policy = make_sharded_lrtf_policy();
  std::vector<JobView> jobs{job(0, 10), job(1, 10), job(2, 10)};
  EXPECT_EQ(chosen(*policy, jobs), 0U);
  jobs[0].missing = Bytes(5);
  jobs[1].missing = Bytes(5);
  EXPECT_EQ(chosen(*policy, jobs), 2U);
}

TEST(PolicyTest, FifoChoosesTheOldestAndRoundRobinTheLeastServed) {
  std::vector<JobView> jobs{job(4, 1), job(2, 9), job(7, 5)};
  EXPECT_EQ(chosen(*make_fifo_policy(), jobs), 1U);
  jobs[0].units_served = 3;
  jobs[1].units_served = 2;
  jobs[2].units_served = 2;
  EXPECT_EQ(chosen(*make_round_robin_policy(), jobs), 1U);
}

TEST(PolicyTest, NothingIsChosenFromNothing) {
  for (const char* name : {"lrtf", "fifo", "round-robin"}) {
    EXPECT_FALSE(make_policy(name)->choose({DeviceId(0), {}})) << name;
  }
  EXPECT_THROW(make_policy("lottery"), InvalidArgument);
}

TEST(TimeModelTest, TheFirstMeasurementReplacesThePredictionAndLaterOnesAreWeighed) {
  TimeModel model({Nanoseconds(100), Nanoseconds(7)});
  EXPECT_EQ(model.predict(0), Nanoseconds(100));
  model.observe(0, Nanoseconds(200));
  EXPECT_EQ(model.predict(0), Nanoseconds(200));
  model.observe(0, Nanoseconds(240));
  EXPECT_EQ(model.predict(0), Nanoseconds(210));
  EXPECT_EQ(model.predict(1), Nanoseconds(7));
}

}  // namespace
}  // namespace hydra
