#include "hydra/schedule/forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>

namespace hydra {
namespace {

using std::chrono::seconds;

ForecastJob job_of(std::int64_t id, Nanoseconds remaining, bool rolls = false) {
  ForecastJob job;
  job.id = JobId(id);
  job.remaining = remaining;
  job.units_left = 100;
  job.rolls = rolls;
  return job;
}

double in_seconds(Nanoseconds time) { return static_cast<double>(time.count()) * 1e-9; }

TEST(ForecastTest, FourEqualJobsOnTwoDevicesTakeTwiceOnesOwnTime) {
  const auto policy = make_policy("lrtf");
  std::vector<ForecastJob> jobs;
  for (int j = 0; j < 4; ++j) jobs.push_back(job_of(j, seconds(10)));
  for (const Nanoseconds end : forecast_ends(*policy, 2, jobs)) {
    EXPECT_NEAR(in_seconds(end), 20, 0.5);
  }
}

TEST(ForecastTest, FirstComeFirstServedEndsJobsInTheirOrder) {
  const auto policy = make_policy("fifo");
  const std::vector<ForecastJob> jobs{job_of(0, seconds(4)), job_of(1, seconds(4)),
                                      job_of(2, seconds(4))};
  const auto ends = forecast_ends(*policy, 1, jobs);
  // A running job gives way to one at rest, but on one device none is running when it chooses.
  EXPECT_NEAR(in_seconds(ends[0]), 4, 0.1);
  EXPECT_NEAR(in_seconds(ends[1]), 8, 0.1);
  EXPECT_NEAR(in_seconds(ends[2]), 12, 0.1);
}

TEST(ForecastTest, AJobThatRollsUsesTheDevicesThatNobodyElseUses) {
  const auto policy = make_policy("lrtf");
  EXPECT_NEAR(in_seconds(forecast_ends(*policy, 2, std::vector{job_of(0, seconds(8), true)})[0]), 4,
              0.1);
  EXPECT_NEAR(in_seconds(forecast_ends(*policy, 2, std::vector{job_of(0, seconds(8), false)})[0]),
              8, 0.1);
}

TEST(ForecastTest, NoForecastIsBelowTheLowerBoundUnderAnyPolicy) {
  for (const std::string_view name : policy_names()) {
    const auto policy = make_policy(name);
    for (std::int64_t n : {1, 2, 5, 40, 256, 300}) {
      std::vector<ForecastJob> jobs;
      for (std::int64_t j = 0; j < n; ++j) jobs.push_back(job_of(j, seconds(1 + j % 7)));
      Nanoseconds sum{0};
      Nanoseconds longest{0};
      for (const auto& job : jobs) {
        sum += job.remaining;
        longest = std::max(longest, job.remaining);
      }
      Nanoseconds last{0};
      for (const Nanoseconds end : forecast_ends(*policy, 3, jobs)) last = std::max(last, end);
      const double bound = std::max(in_seconds(sum) / 3, in_seconds(longest));
      EXPECT_GE(in_seconds(last), bound * 0.999) << name << ", " << n << " jobs";
      EXPECT_LE(in_seconds(last), in_seconds(sum) / 3 + in_seconds(longest) + 0.01) << name;
    }
  }
}

class Throwing final : public Policy {
 public:
  std::string_view name() const noexcept override { return "throwing"; }
  std::optional<Decision> choose(const ScheduleView&) const override {
    throw std::runtime_error("planted");
  }
};

TEST(ForecastTest, APolicyThatThrowsStillGivesAForecast) {
  const std::vector<ForecastJob> jobs{job_of(0, seconds(1)), job_of(1, seconds(1))};
  EXPECT_NEAR(in_seconds(forecast_ends(Throwing(), 1, jobs)[1]), 2, 0.1);
}

TEST(ForecastTest, HugeAndZeroTimesAreForecastWithoutOverflow) {
  const auto policy = make_policy("lrtf");
  const Nanoseconds huge(9000000000000000000);
  const auto ends = forecast_ends(*policy, 1, std::vector{job_of(0, huge), job_of(1, huge)});
  EXPECT_GE(ends[0], huge - huge / 100);
  EXPECT_EQ(forecast_ends(*policy, 1, std::vector{job_of(0, Nanoseconds(0))})[0], Nanoseconds(0));
  EXPECT_TRUE(forecast_ends(*policy, 1, {}).empty());
}

// A run that takes 1.5 times as long as its units' times: half way through, the time left is right.
TEST(TimeLeftTest, LearnsHowMuchSlowerThanForecastTheRunIs) {
  const auto policy = make_policy("lrtf");
  TimeLeft time_left(*policy, 2);
  constexpr double kSlowness = 1.5;
  for (int done = 0; done <= 50; ++done) {
    std::vector<ForecastJob> jobs;
    for (int j = 0; j < 4; ++j) jobs.push_back(job_of(j, seconds(100 - done)));
    const Nanoseconds now(static_cast<std::int64_t>(done * 2 * kSlowness * 1e9));
    const auto left = time_left.estimate(now, jobs);
    if (done == 50) {
      for (const Nanoseconds each : left) EXPECT_NEAR(in_seconds(each), 100 * kSlowness, 5);
    }
  }
}

TEST(TimeLeftTest, ANewJobIsCountedAtOnceAndKeepsWhatWasLearnt) {
  const auto policy = make_policy("lrtf");
  TimeLeft time_left(*policy, 1);
  time_left.estimate(Nanoseconds(0), std::vector{job_of(0, seconds(100))});
  time_left.estimate(seconds(20), std::vector{job_of(0, seconds(90))});  // twice as slow
  const auto left =
      time_left.estimate(seconds(20), std::vector{job_of(0, seconds(90)), job_of(1, seconds(10))});
  EXPECT_NEAR(in_seconds(left[0]), 200, 5);
}

}  // namespace
}  // namespace hydra
