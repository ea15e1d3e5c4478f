#include <algorithm>
#include <string>
#include <tuple>

#include "hydra/core/error.h"
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
    std::optional<std::size_t> kept;
    for (std::size_t i = 0; i < view.jobs.size(); ++i) {
      const JobView& job = view.jobs[i];
      if (job.last_device != view.device) continue;
      if (static_cast<double>(job.remaining.count()) < margin) continue;
      if (!kept || std::tuple(job.missing, -job.remaining, job.id) <
                       std::tuple(view.jobs[*kept].missing, -view.jobs[*kept].remaining,
                                  view.jobs[*kept].id)) {
        kept = i;
      }
    }
    if (kept && *kept != *longest) return Decision{*kept, "sticky: its shard is on the device"};
    return Decision{*longest, "longest remaining time"};
  }

 private:
  double stickiness_;
};

class Fifo final : public Policy {
 public:
  std::string_view name() const noexcept override { return "fifo"; }

  std::optional<Decision> choose(const ScheduleView& view) const override {
    const auto oldest = smallest(view.jobs, [](const JobView& job) { return job.id; });
    if (!oldest) return std::nullopt;
    return Decision{*oldest, "oldest job"};
  }
};

class RoundRobin final : public Policy {
 public:
  std::string_view name() const noexcept override { return "round-robin"; }

  std::optional<Decision> choose(const ScheduleView& view) const override {
    const auto fewest = smallest(
        view.jobs, [](const JobView& job) { return std::tuple(job.units_served, job.id); });
    if (!fewest) return std::nullopt;
    return Decision{*fewest, "fewest units so far"};
  }
};

}  // namespace

std::unique_ptr<Policy> make_sharded_lrtf_policy(double stickiness) {
  return std::make_unique<ShardedLrtf>(stickiness);
}

std::unique_ptr<Policy> make_fifo_policy() { return std::make_unique<Fifo>(); }

std::unique_ptr<Policy> make_round_robin_policy() { return std::make_unique<RoundRobin>(); }

std::unique_ptr<Policy> make_policy(std::string_view name) {
  if (name == "lrtf") return make_sharded_lrtf_policy();
  if (name == "fifo") return make_fifo_policy();
  if (name == "round-robin") return make_round_robin_policy();
  throw InvalidArgument("there is no policy \"" + std::string(name) +
                        "\": choose lrtf, fifo or round-robin");
}

}  // namespace hydra
