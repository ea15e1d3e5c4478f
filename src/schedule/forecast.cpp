#include "hydra/schedule/forecast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace hydra {
namespace {

constexpr std::size_t kMostJobs = 256;
constexpr double kPieces = 512;
// Of the forecast makespan: less progress than this says little about the pace.
constexpr double kEnoughProgress = 0.02;
constexpr double kWeightOfNewest = 0.3;

Nanoseconds rounded(double ns) {
  constexpr double kMost = 9e18;
  return Nanoseconds(static_cast<std::int64_t>(std::clamp(ns, 0.0, kMost)));
}

double total(std::span<const ForecastJob> jobs) {
  double sum = 0;
  for (const ForecastJob& job : jobs) sum += static_cast<double>(job.remaining.count());
  return sum;
}

/// The sharing of devices among jobs, piece by piece.
class Sharing {
 public:
  Sharing(const Policy& policy, std::size_t devices, std::span<const ForecastJob> jobs)
      : policy_(policy), free_at_(devices, 0.0) {
    const double length = std::max(1.0, total(jobs) / kPieces);
    for (const ForecastJob& job : jobs) {
      const double remaining = static_cast<double>(job.remaining.count());
      Work work;
      work.job = &job;
      work.pieces = std::max(1.0, std::ceil(remaining / length));
      work.piece = remaining / work.pieces;
      work.units = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(static_cast<double>(job.units_left) / work.pieces));
      work_.push_back(work);
    }
  }

  std::vector<Nanoseconds> run() {
    while (true) {
      const auto device = static_cast<std::size_t>(
          std::min_element(free_at_.begin(), free_at_.end()) - free_at_.begin());
      const double now = free_at_[device];
      if (now == kNever) break;
      if (const auto chosen = choose(device, now)) {
        give(device, now, work_[*chosen]);
      } else {
        free_at_[device] = next_change(now);
      }
    }
    std::vector<Nanoseconds> ends;
    for (const Work& work : work_) ends.push_back(rounded(work.end));
    return ends;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Work {
    const ForecastJob* job = nullptr;
    double pieces = 0;  ///< not given out
    double piece = 0;   ///< time of one
    std::int64_t units = 1;
    std::int64_t given = 0;
    std::optional<std::size_t> device;
    double busy_until = 0;
    double end = 0;
  };

  static bool running(const Work& work, double now) { return work.busy_until > now; }

  // As the engine does: jobs at rest first, and a job that rolls on a device with nothing else.
  std::optional<std::size_t> choose(std::size_t device, double now) const {
    for (const bool rolling : {false, true}) {
      std::vector<std::size_t> candidates;
      std::vector<JobView> views;
      for (std::size_t j = 0; j < work_.size(); ++j) {
        const Work& work = work_[j];
        if (work.pieces <= 0 || running(work, now) != rolling) continue;
        if (rolling && !work.job->rolls) continue;
        candidates.push_back(j);
        views.push_back(view_of(work));
      }
      if (candidates.empty()) continue;
      const auto decision = ask({DeviceId(static_cast<std::int64_t>(device)), views});
      return candidates[decision < candidates.size() ? decision : 0];
    }
    return std::nullopt;
  }

  // A policy of the user's own may fail: its jobs go in their order then, as in the engine.
  std::size_t ask(const ScheduleView& view) const {
    try {
      const auto decision = policy_.choose(view);
      return decision ? decision->job : 0;
    } catch (...) {
      return 0;
    }
  }

  static JobView view_of(const Work& work) {
    JobView view;
    view.id = work.job->id;
    view.priority = work.job->priority;
    view.remaining = rounded(work.pieces * work.piece);
    view.unit = rounded(work.piece);
    view.units_served = work.job->units_served + work.given;
    if (work.device) view.last_device = DeviceId(static_cast<std::int64_t>(*work.device));
    return view;
  }

  void give(std::size_t device, double now, Work& work) {
    --work.pieces;
    work.given += work.units;
    work.device = device;
    free_at_[device] = now + work.piece;
    work.busy_until = std::max(work.busy_until, free_at_[device]);
    work.end = std::max(work.end, free_at_[device]);
  }

  // When something that is at work now ends.
  double next_change(double now) const {
    double next = kNever;
    const bool any_left =
        std::any_of(work_.begin(), work_.end(), [](const Work& work) { return work.pieces > 0; });
    if (!any_left) return kNever;
    for (const double at : free_at_) {
      if (at > now) next = std::min(next, at);
    }
    return next;
  }

  const Policy& policy_;
  std::vector<double> free_at_;
  std::vector<Work> work_;
};

}  // namespace

std::vector<Nanoseconds> forecast_ends(const Policy& policy, std::size_t devices,
                                       std::span<const ForecastJob> jobs) {
  if (jobs.size() <= kMostJobs) return Sharing(policy, devices, jobs).run();
  Nanoseconds longest{0};
  for (const ForecastJob& job : jobs) longest = std::max(longest, job.remaining);
  const Nanoseconds bound = std::max(longest, rounded(total(jobs) / static_cast<double>(devices)));
  return std::vector<Nanoseconds>(jobs.size(), bound);
}

std::vector<Nanoseconds> TimeLeft::estimate(Nanoseconds now, std::span<const ForecastJob> jobs) {
  std::vector<Nanoseconds> ends = forecast_ends(policy_, devices_, jobs);
  Nanoseconds makespan{0};
  for (const Nanoseconds end : ends) makespan = std::max(makespan, end);
  learn(now, jobs, static_cast<double>(makespan.count()));
  for (Nanoseconds& end : ends) end = rounded(static_cast<double>(end.count()) * slowness_);
  return ends;
}

void TimeLeft::learn(Nanoseconds now, std::span<const ForecastJob> jobs, double makespan) {
  std::vector<JobId> present;
  for (const ForecastJob& job : jobs) present.push_back(job.id);
  const double progress = makespan_ - makespan;
  const bool comparable =
      makespan_ > 0 && std::includes(jobs_.begin(), jobs_.end(), present.begin(), present.end());
  if (comparable && progress < kEnoughProgress * makespan_) return;
  if (comparable) {
    const double sample =
        std::clamp(static_cast<double>((now - since_).count()) / progress, 0.2, 20.0);
    slowness_ = learnt_ ? slowness_ + kWeightOfNewest * (sample - slowness_) : sample;
    learnt_ = true;
  }
  jobs_ = std::move(present);
  makespan_ = makespan;
  since_ = now;
}

}  // namespace hydra
