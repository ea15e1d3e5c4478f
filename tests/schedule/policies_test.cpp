#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/schedule/policy.h"
#include "hydra/schedule/time_model.h"
#include "hydra/testing/sweep.h"

namespace hydra {
namespace {

JobView job(std::int64_t id, std::int64_t remaining_ns, std::int64_t last_device = -1) {
  JobView view;
  view.id = JobId(id);
  view.remaining = Nanoseconds(remaining_ns);
  view.last_device = DeviceId(last_device);
  return view;
}

/// Gives a job a unit.
void serve(std::vector<JobView>& jobs, std::size_t which) {
  for (JobView& each : jobs) ++each.units_waited;
  jobs[which].units_waited = 0;
  ++jobs[which].units_served;
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

TEST(PolicyTest, FifoChoosesTheOldestAndRoundRobinTheOneThatWaitedLongest) {
  std::vector<JobView> jobs{job(4, 1), job(2, 9), job(7, 5)};
  EXPECT_EQ(chosen(*make_fifo_policy(), jobs), 1U);
  jobs[0].units_waited = 1;
  jobs[1].units_waited = 2;
  jobs[2].units_waited = 2;
  EXPECT_EQ(chosen(*make_round_robin_policy(), jobs), 1U);
}

TEST(PolicyTest, NothingIsChosenFromNothing) {
  for (const std::string_view name : policy_names()) {
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

std::vector<JobView> random_jobs(SplitMix64& random) {
  std::vector<JobView> jobs;
  const std::uint64_t count = 1 + random.below(8);
  for (std::uint64_t i = 0; i < count; ++i) {
    // Few different values: ties are common.
    JobView view =
        job(static_cast<std::int64_t>(i), static_cast<std::int64_t>(90 + random.below(12)),
            static_cast<std::int64_t>(random.below(3)) - 1);
    view.missing = Bytes(static_cast<std::int64_t>(random.below(3)));
    view.units_served = static_cast<std::int64_t>(random.below(3));
    view.units_waited = static_cast<std::int64_t>(random.below(3));
    jobs.push_back(view);
  }
  for (std::size_t i = jobs.size(); i > 1; --i) std::swap(jobs[i - 1], jobs[random.below(i)]);
  return jobs;
}

/// The rule of the header, job by job.
JobId lrtf_by_definition(const std::vector<JobView>& jobs, DeviceId device, double stickiness) {
  const auto longest = *std::min_element(jobs.begin(), jobs.end(), [](auto& a, auto& b) {
    return std::tuple(-a.remaining, a.missing, a.id) < std::tuple(-b.remaining, b.missing, b.id);
  });
  std::vector<JobView> sticky;
  for (const JobView& view : jobs) {
    if (view.last_device == device &&
        static_cast<double>(view.remaining.count()) >=
            static_cast<double>(longest.remaining.count()) * (1 - stickiness)) {
      sticky.push_back(view);
    }
  }
  if (sticky.empty()) return longest.id;
  return std::min_element(sticky.begin(), sticky.end(),
                          [](auto& a, auto& b) {
                            return std::tuple(a.missing, -a.remaining, a.id) <
                                   std::tuple(b.missing, -b.remaining, b.id);
                          })
      ->id;
}

TEST(PolicyTest, LrtfAgreesWithItsDefinitionOnRandomJobsWithTies) {
  SplitMix64 random(12);
  for (const double stickiness : {0.0, 0.05, 1.0}) {
    const auto policy = make_sharded_lrtf_policy(stickiness);
    for (int round = 0; round < testing::sweep_rounds(1000); ++round) {
      const auto jobs = random_jobs(random);
      for (const std::int64_t device : {0, 1}) {
        const auto decision = policy->choose({DeviceId(device), jobs});
        ASSERT_TRUE(decision);
        EXPECT_EQ(jobs[decision->job].id, lrtf_by_definition(jobs, DeviceId(device), stickiness));
        EXPECT_FALSE(decision->reason.empty());
      }
    }
  }
}

TEST(PolicyTest, TheChoiceIsTheSameWheneverAskedAndInWhateverOrderTheJobsAreListed) {
  SplitMix64 random(13);
  for (const std::string_view name : policy_names()) {
    const auto policy = make_policy(name);
    for (int round = 0; round < testing::sweep_rounds(500); ++round) {
      auto jobs = random_jobs(random);
      const JobId first = jobs[chosen(*policy, jobs)].id;
      EXPECT_EQ(jobs[chosen(*policy, jobs)].id, first);
      std::reverse(jobs.begin(), jobs.end());
      EXPECT_EQ(jobs[chosen(*policy, jobs)].id, first) << name;
    }
  }
}

TEST(PolicyTest, RoundRobinServesEveryJobEquallyOften) {
  const auto policy = make_round_robin_policy();
  std::vector<JobView> jobs{job(0, 9), job(1, 1), job(2, 5)};
  std::vector<JobId> order;
  for (int unit = 0; unit < 6; ++unit) {
    const std::size_t next = chosen(*policy, jobs);
    serve(jobs, next);
    order.push_back(jobs[next].id);
  }
  EXPECT_EQ(order, (std::vector{JobId(0), JobId(1), JobId(2), JobId(0), JobId(1), JobId(2)}));
}

TEST(PolicyTest, LrtfLetsARunningJobGoOnOnlyWhenItIsLongerByMoreThanTheMargin) {
  const auto policy = make_sharded_lrtf_policy(0.05);
  std::vector<JobView> jobs{job(0, 1000, 0), job(1, 960), job(2, 970)};
  jobs[0].running = true;
  EXPECT_EQ(chosen(*policy, jobs), 2U);  // at hand, and long enough
  jobs[1].remaining = jobs[2].remaining = Nanoseconds(940);
  EXPECT_EQ(chosen(*policy, jobs), 0U);
  jobs[1].last_device = DeviceId(0);  // sticky jobs are not sticky beyond the margin either
  EXPECT_EQ(chosen(*policy, jobs), 0U);
}

TEST(PolicyTest, FifoAndShortestFillGapsBeforeTheyLetARunningJobGoOn) {
  std::vector<JobView> jobs{job(0, 1), job(1, 9)};
  jobs[0].running = true;
  EXPECT_EQ(chosen(*make_fifo_policy(), jobs), 1U);
  EXPECT_EQ(chosen(*make_shortest_policy(), jobs), 1U);
  EXPECT_EQ(chosen(*make_fifo_policy(), {jobs[0]}), 0U);
}

TEST(PolicyTest, ShortestChoosesTheShortestRemaining) {
  EXPECT_EQ(chosen(*make_shortest_policy(), {job(0, 5), job(2, 3), job(1, 3)}), 2U);
}

TEST(PolicyTest, PriorityGivesTwiceTheUnitsPerLevelAndStarvesNobody) {
  const auto policy = make_priority_policy();
  std::vector<JobView> jobs{job(0, 1), job(1, 1), job(2, 1)};
  jobs[0].priority = -1;
  jobs[1].priority = 1;
  jobs[2].priority = 0;
  for (int unit = 0; unit < 700; ++unit) serve(jobs, chosen(*policy, jobs));
  EXPECT_NEAR(static_cast<double>(jobs[0].units_served), 100, 1);
  EXPECT_NEAR(static_cast<double>(jobs[2].units_served), 200, 1);
  EXPECT_NEAR(static_cast<double>(jobs[1].units_served), 400, 1);
}

TEST(PolicyTest, PriorityKeepsItsSharesAmongMany) {
  const auto policy = make_priority_policy();
  std::vector<JobView> jobs;
  for (const std::int64_t priority : {0, 1, 2, 2, 3}) {
    jobs.push_back(job(static_cast<std::int64_t>(jobs.size()), 1));
    jobs.back().priority = priority;
  }
  for (int unit = 0; unit < 1900; ++unit) serve(jobs, chosen(*policy, jobs));
  const double share = 1900.0 / (1 + 2 + 4 + 4 + 8);
  for (const JobView& each : jobs) {
    const double own = share * std::ldexp(1.0, static_cast<int>(each.priority));
    EXPECT_NEAR(static_cast<double>(each.units_served), own, 0.06 * own) << each.priority;
  }
}

TEST(PolicyTest, ALateJobGetsItsTurnAndNoMore) {
  for (const std::string_view name : {"round-robin", "priority"}) {
    const auto policy = make_policy(name);
    std::vector<JobView> jobs{job(0, 1), job(1, 1)};
    for (int unit = 0; unit < 1000; ++unit) serve(jobs, chosen(*policy, jobs));
    jobs.push_back(job(2, 1));
    for (int unit = 0; unit < 30; ++unit) serve(jobs, chosen(*policy, jobs));
    EXPECT_EQ(jobs[2].units_served, 10) << name;
    // As little as one that was kept away for long, by its data or for want of memory.
    std::vector<JobView> present{jobs[0], jobs[1]};
    for (int unit = 0; unit < 1000; ++unit) serve(present, chosen(*policy, present));
    jobs[2].units_waited += 1000;
    jobs = {present[0], present[1], jobs[2]};
    const std::int64_t before = jobs[2].units_served;
    for (int unit = 0; unit < 30; ++unit) serve(jobs, chosen(*policy, jobs));
    EXPECT_LE(jobs[2].units_served - before, 11) << name;
  }
}

TEST(PolicyTest, RandomChoosesEveryJobAboutEquallyOftenAndBySeed) {
  std::vector<JobView> jobs{job(0, 1), job(1, 1), job(2, 1), job(3, 1)};
  std::vector<int> counts(4, 0);
  int differences = 0;
  for (int unit = 0; unit < 4000; ++unit) {
    const std::size_t one = chosen(*make_random_policy(1), jobs);
    differences += one != chosen(*make_random_policy(2), jobs) ? 1 : 0;
    ++counts[one];
    ++jobs[one].units_served;
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
  EXPECT_NEAR(differences, 3000, 200);
}

TEST(PolicyTest, OfTheJobsThatStickTheOneWithFewestMissingBytesIsKept) {
  const auto policy = make_sharded_lrtf_policy(0.1);
  std::vector<JobView> jobs{job(0, 1000), job(1, 990, 0), job(2, 950, 0)};
  jobs[1].missing = Bytes(7);
  EXPECT_EQ(chosen(*policy, jobs), 2U);
}

TEST(PolicyTest, AStickinessThatIsNoShareIsRefused) {
  for (const double stickiness : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THROW(make_sharded_lrtf_policy(stickiness), InvalidArgument) << stickiness;
  }
}

TEST(PolicyTest, PoliciesAreMadeByTheNamesTheyCarryAndARefusalListsThem) {
  for (const std::string_view name : policy_names()) {
    EXPECT_EQ(make_policy(name)->name(), name);
  }
  try {
    make_policy("lottery");
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("lottery"), std::string::npos) << error.what();
    for (const std::string_view name : policy_names()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << name;
    }
  }
}

TEST(TimeModelTest, APredictionMovesToASteadyMeasurementFromBothSides) {
  TimeModel model({Nanoseconds(0)});
  model.observe(0, Nanoseconds(1000000));
  for (int i = 0; i < 60; ++i) model.observe(0, Nanoseconds(2000000));
  EXPECT_NEAR(static_cast<double>(model.predict(0).count()), 2e6, 10);
  for (int i = 0; i < 60; ++i) model.observe(0, Nanoseconds(500000));
  EXPECT_NEAR(static_cast<double>(model.predict(0).count()), 5e5, 10);
}

TEST(TimeModelTest, AUnitThatDoesNotExistIsRefused) {
  TimeModel model({Nanoseconds(1)});
  EXPECT_THROW(model.predict(1), std::out_of_range);
  EXPECT_THROW(model.observe(1, Nanoseconds(1)), std::out_of_range);
}

}  // namespace
}  // namespace hydra
