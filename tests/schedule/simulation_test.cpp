#include "hydra/schedule/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/testing/sweep.h"

namespace hydra {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

SimulatedJob even_job(std::size_t shards, std::int64_t steps, Nanoseconds forward) {
  SimulatedJob job;
  job.steps = steps;
  for (std::size_t s = 0; s < shards; ++s) {
    SimulatedShard shard;
    shard.forward = forward;
    shard.backward = 3 * forward;
    job.shards.push_back(shard);
  }
  return job;
}

SimulationOptions sweep(std::size_t devices, std::vector<SimulatedJob> jobs, const Policy& policy) {
  SimulationOptions options;
  options.devices.resize(devices);
  options.jobs = std::move(jobs);
  options.policy = &policy;
  return options;
}

double ratio_to_bound(const SimulationOptions& options) {
  return static_cast<double>(simulate(options).makespan.count()) /
         static_cast<double>(makespan_lower_bound(options).count());
}

/// Anything that can be simulated, small.
SimulationOptions random_sweep(SplitMix64& random, const Policy& policy) {
  const auto time = [&](std::uint64_t most) {
    return Nanoseconds(static_cast<std::int64_t>(random.below(most)));
  };
  SimulationOptions options;
  options.policy = &policy;
  options.update_workers = 1 + static_cast<int>(random.below(2));
  options.keep_units = true;
  const bool links = random.below(2) == 0;
  for (std::uint64_t d = 0; d < 1 + random.below(4); ++d) {
    SimulatedDevice device;
    device.speed = 0.5 + static_cast<double>(random.below(4)) / 2;
    device.link_bytes_per_second = links ? 1e9 * static_cast<double>(1 + random.below(5)) : 0;
    device.memory = random.below(2) == 0 ? Bytes(0) : Bytes(2000);
    options.devices.push_back(device);
  }
  for (std::uint64_t j = 0; j < 1 + random.below(6); ++j) {
    SimulatedJob job;
    job.steps = 1 + static_cast<std::int64_t>(random.below(4));
    job.arrival = time(3000);
    job.priority = static_cast<std::int64_t>(random.below(3));
    for (std::uint64_t s = 0; s < 1 + random.below(4); ++s) {
      job.shards.push_back({Bytes(static_cast<std::int64_t>(random.below(1000))),
                            Bytes(static_cast<std::int64_t>(random.below(1000))), time(1000),
                            time(3000), time(500)});
    }
    options.jobs.push_back(job);
  }
  return options;
}

// What must hold of every schedule, looked at from outside.
void expect_sound(const SimulationOptions& options, const SimulationResult& result) {
  std::map<std::size_t, std::vector<SimulationResult::UnitRun>> of_job;
  std::map<std::size_t, std::vector<SimulationResult::UnitRun>> of_device;
  for (const auto& unit : result.units) {
    of_job[unit.job].push_back(unit);
    of_device[unit.device].push_back(unit);
  }
  for (std::size_t j = 0; j < options.jobs.size(); ++j) {
    const auto& job = options.jobs[j];
    const auto& units = of_job[j];
    ASSERT_EQ(units.size(), (2 * job.shards.size() - 1) * static_cast<std::size_t>(job.steps));
    for (std::size_t u = 0; u < units.size(); ++u) {
      ASSERT_EQ(units[u].number, static_cast<std::int64_t>(u));
      ASSERT_GE(units[u].start, u == 0 ? job.arrival : units[u - 1].end);
    }
    ASSERT_GE(result.job_ends[j], units.back().end);
    ASSERT_LE(result.job_ends[j], result.makespan);
  }
  for (std::size_t d = 0; d < options.devices.size(); ++d) {
    Nanoseconds busy{0};
    for (std::size_t u = 0; u < of_device[d].size(); ++u) {
      const Nanoseconds before = u == 0 ? Nanoseconds(0) : of_device[d][u - 1].end;
      ASSERT_GE(of_device[d][u].start, before);
      busy += of_device[d][u].end - of_device[d][u].start;
    }
    ASSERT_EQ(result.devices[d].busy, busy);
  }
  ASSERT_GE(result.makespan, makespan_lower_bound(options) - Nanoseconds(100));  // rounding
}

TEST(SimulationTest, RandomSweepsAreSoundUnderEveryPolicyAndTheSameWheneverPlayed) {
  SplitMix64 random(1);
  for (int round = 0; round < testing::sweep_rounds(10000 / 6); ++round) {
    for (const std::string_view name : policy_names()) {
      const auto policy = make_policy(name);
      const SimulationOptions options = random_sweep(random, *policy);
      const SimulationResult result = simulate(options);
      expect_sound(options, result);
      if (HasFatalFailure()) FAIL() << name << ", round " << round;
      EXPECT_EQ(simulate(options).makespan, result.makespan);
    }
  }
}

TEST(SimulationTest, NoDeviceIdlesWhileAnUnclaimedUnitCouldRun) {
  SplitMix64 random(2);
  const auto policy = make_sharded_lrtf_policy();
  for (int round = 0; round < testing::sweep_rounds(1000); ++round) {
    SimulationOptions options = random_sweep(random, *policy);
    for (auto& device : options.devices) device = {};
    for (auto& job : options.jobs) {
      job.arrival = Nanoseconds(0);
      for (auto& shard : job.shards) shard.update = Nanoseconds(0);
    }
    const SimulationResult result = simulate(options);
    // With nothing to wait for but other units, at any moment either all devices work or every
    // unfinished job does.
    std::vector<Nanoseconds> borders;
    for (const auto& unit : result.units) borders.push_back(unit.start);
    for (const Nanoseconds moment : borders) {
      std::size_t running = 0;
      std::size_t unfinished = 0;
      for (const auto& unit : result.units) running += unit.start <= moment && moment < unit.end;
      for (const Nanoseconds end : result.job_ends) unfinished += moment < end;
      // Units without duration are over before they are seen.
      const bool instant = std::any_of(result.units.begin(), result.units.end(),
                                       [](const auto& unit) { return unit.start == unit.end; });
      if (instant) continue;
      ASSERT_EQ(running, std::min(options.devices.size(), unfinished)) << "round " << round;
    }
  }
}

TEST(SimulationTest, AHandComputedCase) {
  // One device, one job of two shards whose parts both have to come: up 10, forward 5, up 10 beside
  // it, backward 6, backward 4 (its parts are still there), gradient 3 down, update 2.
  const auto policy = make_fifo_policy();
  SimulatedJob job;
  job.shards = {{Bytes(10), Bytes(3), Nanoseconds(5), Nanoseconds(4), Nanoseconds(2)},
                {Bytes(10), Bytes(3), Nanoseconds(0), Nanoseconds(6), Nanoseconds(2)}};
  SimulationOptions options = sweep(1, {job}, *policy);
  options.devices[0].link_bytes_per_second = 1e9;
  EXPECT_EQ(simulate(options).makespan, Nanoseconds(10 + 5 + 5 + 6 + 4 + 3 + 2));
  options.devices[0].memory = Bytes(10);  // now nothing can come before the other has gone
  EXPECT_EQ(simulate(options).makespan, Nanoseconds(10 + 5 + 10 + 6 + 10 + 4 + 3 + 2));
  EXPECT_EQ(simulate(options).devices[0].upload, Nanoseconds(30));
}

TEST(SimulationTest, LrtfIsWithinTwoPercentOfTheLowerBound) {
  const auto lrtf = make_sharded_lrtf_policy();
  SplitMix64 random(3);
  for (const std::size_t jobs : {8, 64}) {
    for (const std::size_t devices : {4, 8}) {
      std::vector<SimulatedJob> equal;
      std::vector<SimulatedJob> unequal;
      for (std::size_t j = 0; j < jobs; ++j) {
        equal.push_back(even_job(4, 286, milliseconds(10)));  // 2002 units
        // 100 to 10 000 units, half an hour to four hours.
        const auto steps = static_cast<std::int64_t>(15 + random.below(1414));
        const double hours = 0.5 + 3.5 * static_cast<double>(random.below(1000)) / 1000;
        const double per_step = hours * 3600e9 / static_cast<double>(steps);
        unequal.push_back(
            even_job(4, steps, Nanoseconds(static_cast<std::int64_t>(per_step / 15))));
      }
      for (const bool even : {true, false}) {
        const double own = ratio_to_bound(sweep(devices, even ? equal : unequal, *lrtf));
        EXPECT_LE(own, 1.02) << jobs << " jobs on " << devices;
        std::printf("%2zu %s jobs on %zu devices, makespan / bound: lrtf %.3f", jobs,
                    even ? "equal  " : "unequal", devices, own);
        if (jobs > 8 && !testing::long_sweeps()) {
          std::printf("\n");
          continue;
        }
        for (const std::string_view name : policy_names()) {
          if (name == "lrtf") continue;
          const auto policy = make_policy(name);
          std::printf(" %s %.3f", std::string(name).c_str(),
                      ratio_to_bound(sweep(devices, even ? equal : unequal, *policy)));
        }
        std::printf("\n");
      }
    }
  }
}

/// The best makespan of a sweep without links and updates, by trying every choice.
class BestSchedule {
 public:
  explicit BestSchedule(const SimulationOptions& options)
      : options_(options), free_(options.devices.size(), 0), ready_(options.jobs.size(), 0) {
    for (const auto& job : options.jobs) {
      std::vector<std::int64_t> times;
      for (std::int64_t step = 0; step < job.steps; ++step) {
        for (std::size_t s = 0; s + 1 < job.shards.size(); ++s) {
          times.push_back(job.shards[s].forward.count());
        }
        for (std::size_t s = job.shards.size(); s-- > 0;) {
          times.push_back(job.shards[s].backward.count());
        }
      }
      units_.push_back(std::move(times));
    }
    next_.assign(units_.size(), 0);
    best_ = simulate(options).makespan.count();
    search();
  }
  std::int64_t makespan() const { return best_; }

 private:
  // Appends a unit in order of start times: on the device that is free first.
  void search() {
    const auto device = std::min_element(free_.begin(), free_.end());
    std::int64_t rest = 0;
    std::int64_t longest = 0;
    std::int64_t end = 0;
    for (std::size_t j = 0; j < units_.size(); ++j) {
      std::int64_t own = 0;
      for (std::size_t u = next_[j]; u < units_[j].size(); ++u) own += units_[j][u];
      rest += own;
      end = std::max(end, ready_[j]);
      if (own > 0) longest = std::max(longest, std::max(ready_[j], *device) + own);
    }
    std::int64_t busy = rest;
    for (const std::int64_t free : free_) busy += free;
    const auto devices = static_cast<std::int64_t>(free_.size());
    if (std::max({longest, (busy + devices - 1) / devices, end}) >= best_ && rest > 0) return;
    if (rest == 0) {
      best_ = std::min(best_, end);
      return;
    }
    for (std::size_t j = 0; j < units_.size(); ++j) {
      if (next_[j] == units_[j].size()) continue;
      const std::int64_t start = std::max(*device, ready_[j]);
      const std::int64_t old_free = std::exchange(*device, start + units_[j][next_[j]]);
      const std::int64_t old_ready = std::exchange(ready_[j], *device);
      ++next_[j];
      search();
      --next_[j];
      ready_[j] = old_ready;
      *device = old_free;
    }
  }

  const SimulationOptions& options_;
  std::vector<std::vector<std::int64_t>> units_;
  std::vector<std::size_t> next_;
  std::vector<std::int64_t> free_;
  std::vector<std::int64_t> ready_;
  std::int64_t best_ = 0;
};

TEST(SimulationTest, LrtfIsNearTheProvenOptimumOfSmallCases) {
  const auto policy = make_sharded_lrtf_policy(0);
  SplitMix64 random(4);
  double sum = 0;
  constexpr int kCases = 60;
  for (int round = 0; round < kCases; ++round) {
    SimulationOptions options = sweep(2, {}, *policy);
    for (int j = 0; j < 3; ++j) {
      SimulatedJob job = even_job(2, 1 + static_cast<std::int64_t>(random.below(2)),
                                  Nanoseconds(static_cast<std::int64_t>(1 + random.below(20))));
      options.jobs.push_back(job);
    }
    const double own = static_cast<double>(simulate(options).makespan.count());
    const double best = static_cast<double>(BestSchedule(options).makespan());
    ASSERT_LE(best, own);
    sum += own / best;
  }
  std::printf("mean of LRTF / optimum over %d cases: %.4f\n", kCases, sum / kCases);
  EXPECT_LE(sum / kCases, 1.04);
}

TEST(SimulationTest, SixteenJobsScaleToSixteenDevices) {
  const auto policy = make_sharded_lrtf_policy();
  std::vector<SimulatedJob> jobs;
  for (int j = 0; j < 16; ++j) jobs.push_back(even_job(4, 100, milliseconds(5)));
  const double one = static_cast<double>(simulate(sweep(1, jobs, *policy)).makespan.count());
  for (const std::size_t devices : {1, 2, 4, 8, 16, 32, 64}) {
    const double many =
        static_cast<double>(simulate(sweep(devices, jobs, *policy)).makespan.count());
    const double efficiency = one / many / static_cast<double>(devices);
    std::printf("%2zu devices: efficiency %.3f\n", devices, efficiency);
    EXPECT_GE(efficiency, devices <= 16 ? 0.97 : 0.0) << devices;
  }
}

TEST(SimulationTest, WhatCannotBeSimulatedIsRefused) {
  const auto policy = make_fifo_policy();
  EXPECT_THROW(simulate(sweep(0, {}, *policy)), InvalidArgument);
  EXPECT_THROW(simulate(sweep(1, {SimulatedJob{}}, *policy)), InvalidArgument);
  SimulatedJob job = even_job(1, 1, Nanoseconds(1));
  job.shards[0].parts = Bytes(10);
  SimulationOptions options = sweep(1, {job}, *policy);
  options.devices[0].memory = Bytes(9);
  EXPECT_THROW(simulate(options), InvalidArgument);
  EXPECT_EQ(simulate(sweep(1, {}, *policy)).makespan, Nanoseconds(0));
}

TEST(SimulationTest, ALateJobDoesNotMonopoliseTheDevices) {
  for (const std::string_view name : {"round-robin", "priority"}) {
    const auto policy = make_policy(name);
    SimulatedJob early = even_job(2, 200, milliseconds(1));
    SimulatedJob late = even_job(2, 200, milliseconds(1));
    late.arrival = milliseconds(700);
    SimulationOptions options = sweep(1, {early, early, late}, *policy);
    options.keep_units = true;
    int of_late = 0;
    int all = 0;
    for (const auto& unit : simulate(options).units) {
      if (unit.start < late.arrival || unit.start >= late.arrival + milliseconds(300)) continue;
      ++all;
      of_late += unit.job == 2 ? 1 : 0;
    }
    EXPECT_NEAR(of_late, all / 3.0, 2) << name;
  }
}

/// Chooses nothing, or what was not offered, after a few choices.
struct Stubborn final : Policy {
  explicit Stubborn(std::int64_t most, bool past_the_end = false)
      : units(most), beyond(past_the_end) {}
  std::string_view name() const noexcept override { return "stubborn"; }
  std::optional<Decision> choose(const ScheduleView& view) const override {
    for (std::size_t i = 0; i < view.jobs.size(); ++i) {
      if (view.jobs[i].units_served < units) return Decision{i, "yet"};
    }
    if (beyond) return Decision{view.jobs.size(), "beyond"};
    return std::nullopt;
  }
  std::int64_t units;
  bool beyond;
};

std::string refusal(const SimulationOptions& options) {
  try {
    simulate(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(SimulationTest, ASweepThatIsStuckIsRefusedWithItsJobsAndWhatTheyWaitFor) {
  const Stubborn policy(4);
  const std::string message =
      refusal(sweep(2, {even_job(2, 1, milliseconds(1)), even_job(2, 5, milliseconds(1))}, policy));
  EXPECT_EQ(message.find("job 0"), std::string::npos) << message;  // it ended
  for (const char* part : {"stuck at 0.0", "job 1, 1 of 5 steps done",
                           "the policy \"stubborn\" to choose its backward unit of shard 1"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  }
  EXPECT_NE(refusal(sweep(1, {even_job(1, 9, milliseconds(1))}, Stubborn(0))).find("0 of 9 steps"),
            std::string::npos);
}

TEST(SimulationTest, APolicyThatChoosesWhatItWasNotOfferedIsRefusedByName) {
  const Stubborn policy(2, true);
  const std::string message = refusal(sweep(1, {even_job(2, 5, milliseconds(1))}, policy));
  EXPECT_NE(message.find("\"stubborn\" chose job 1 of 1"), std::string::npos) << message;
}

}  // namespace
}  // namespace hydra
