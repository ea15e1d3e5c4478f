#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/schedule/policy.h"

namespace hydra {
namespace {

/// Returns the index of the job whose key is smallest; keys end with the job's id, so they differ.
template <typename Key>
std::optional<std::size_t> smallest(std::span<const JobView> jobs, Key key) {
  if (jobs.empty()) return std::nullopt;
  const auto found = std::min_element(
      jobs.begin(), jobs.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return static_cast<std::size_t>(found - jobs.begin());
}

class ShardedLrtf final : public Policy {
 public:
  explicit ShardedLrtf(double stickiness) : stickiness_(stickiness) {
    if (!(stickiness >= 0 && stickiness <= 1)) {
      throw InvalidArgument("stickiness is " + std::to_string(stickiness) +
                            ", must lie between 0 and 1");
    }
  }

  std::string_view name() const noexcept override { return "lrtf"; }

  std::optional<Decision> choose(const ScheduleView& view) const override {
    const auto longest = smallest(view.jobs, [](const JobView& job) {
      return std::tuple(-job.remaining, job.missing, job.id);
    });
    if (!longest) return std::nullopt;
    const double margin =
        static_cast<double>(view.jobs[*longest].remaining.count()) * (1 - stickiness_);
    const auto best_within_margin = [&](auto eligible) {
      std::optional<std::size_t> best;
      for (std::size_t i = 0; i < view.jobs.size(); ++i) {
        const JobView& job = view.jobs[i];
        if (static_cast<double>(job.remaining.count()) < margin || !eligible(job)) continue;
        if (!best || closeness(job) < closeness(view.jobs[*best])) best = i;
      }
      return best;
    };
    const auto sticky = best_within_margin(
        [&](const JobView& job) { return !job.running && job.last_device == view.device; });
    if (sticky && *sticky != *longest) {
      return Decision{*sticky, "sticky: its shard is on the device"};
    }
    if (!view.jobs[*longest].running) return Decision{*longest, "longest remaining time"};
    const auto ready = best_within_margin([](const JobView& job) { return !job.running; });
    if (ready) return Decision{*ready, "fills the gap in a longer job"};
    return Decision{*longest, "longest remaining time by far"};
  }

 private:
  static std::tuple<Bytes, Nanoseconds, JobId> closeness(const JobView& job) {
    return {job.missing, -job.remaining, job.id};
  }

  double stickiness_;
};

class Fifo final : public Policy {
 public:
  std::string_view name() const noexcept override { return "fifo"; }

  std::optional<Decision> choose(const ScheduleView& view) const override {
    const auto oldest =
        smallest(view.jobs, [](const JobView& job) { return std::tuple(job.running, job.id); });
    if (!oldest) return std::nullopt;
    return Decision{*oldest, "oldest job"};
  }
};

class RoundRobin final : public Policy {
 public:
  std::string_view name() const noexcept override { return "round-robin"; }

  std::optional<Decision> choose(const ScheduleView& view) const override {
    const auto longest = smallest(
        view.jobs, [](const JobView& job) { return std::tuple(-job.units_waited, job.id); });
    if (!longest) return std::nullopt;
    return Decision{*longest, "its turn"};
  }
};

class Shortest final : public Policy {
 public:
  std::string_view name() const noexcept override { return "shortest"; }

  std::optional<Decision> choose(const ScheduleView& view) const override {
    const auto shortest = smallest(view.jobs, [](const JobView& job) {
      return std::tuple(job.running, job.remaining, job.id);
    });
    if (!shortest) return std::nullopt;
    return Decision{*shortest, "shortest remaining time"};
  }
};

class Priority final : public Policy {
 public:
  std::string_view name() const noexcept override { return "priority"; }

  std::optional<Decision> choose(const ScheduleView& view) const override {
    if (view.jobs.empty()) return std::nullopt;
    const auto lowest = std::min_element(
        view.jobs.begin(), view.jobs.end(),
        [](const JobView& a, const JobView& b) { return a.priority < b.priority; });
    const auto longest = smallest(view.jobs, [&](const JobView& job) {
      const std::int64_t level = std::min(job.priority - lowest->priority, kLevels);
      const double waited =
          std::ldexp(static_cast<double>(job.units_waited + 1), static_cast<int>(level));
      return std::tuple(-waited, -job.priority, job.id);
    });
    return Decision{*longest, "waited longest for its priority"};
  }

 private:
  static constexpr std::int64_t kLevels = 32;
};

class Random final : public Policy {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}

  std::string_view name() const noexcept override { return "random"; }

  std::optional<Decision> choose(const ScheduleView& view) const override {
    if (view.jobs.empty()) return std::nullopt;
    std::uint64_t served = 0;
    for (const JobView& job : view.jobs) served += static_cast<std::uint64_t>(job.units_served);
    // By id, so that the order of the list does not matter.
    const auto chosen = smallest(view.jobs, [&](const JobView& job) {
      return std::tuple(mix_seed(seed_, {static_cast<std::uint64_t>(view.device.value()), served,
                                         static_cast<std::uint64_t>(job.id.value())}),
                        job.id);
    });
    return Decision{*chosen, "drawn"};
  }

 private:
  std::uint64_t seed_;
};

constexpr std::array<std::string_view, 6> kNames{"lrtf",     "fifo",     "round-robin",
                                                 "shortest", "priority", "random"};

}  // namespace

std::unique_ptr<Policy> make_sharded_lrtf_policy(double stickiness) {
  return std::make_unique<ShardedLrtf>(stickiness);
}

std::unique_ptr<Policy> make_fifo_policy() { return std::make_unique<Fifo>(); }

std::unique_ptr<Policy> make_round_robin_policy() { return std::make_unique<RoundRobin>(); }

std::unique_ptr<Policy> make_shortest_policy() { return std::make_unique<Shortest>(); }

std::unique_ptr<Policy> make_priority_policy() { return std::make_unique<Priority>(); }

std::unique_ptr<Policy> make_random_policy(std::uint64_t seed) {
  return std::make_unique<Random>(seed);
}

std::unique_ptr<Policy> make_policy(std::string_view name) {
  if (name == "lrtf") return make_sharded_lrtf_policy();
  if (name == "fifo") return make_fifo_policy();
  if (name == "round-robin") return make_round_robin_policy();
  if (name == "shortest") return make_shortest_policy();
  if (name == "priority") return make_priority_policy();
  if (name == "random") return make_random_policy();
  std::string names;
  for (const std::string_view known : kNames) {
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  throw InvalidArgument("there is no policy \"" + std::string(name) + "\": choose one of " + names);
}

std::span<const std::string_view> policy_names() { return kNames; }

}  // namespace hydra
