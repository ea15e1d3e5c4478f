#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hydra/core/clock.h"
#include "hydra/core/ids.h"
#include "hydra/schedule/policy.h"

namespace hydra {

/// What a forecast needs to know of a job that has not ended.
struct ForecastJob {
  JobId id;
  std::int64_t priority = 0;
  Nanoseconds remaining{0};       ///< predicted compute time from its next unit to its end
  std::int64_t units_left = 0;    ///< as many units
  std::int64_t units_served = 0;  ///< units given out so far
  bool rolls = false;             ///< its units may overlap on several devices
};

/// Returns when each job ends, from now, if `devices` go on sharing the work as `policy` says: the
/// jobs' remaining times cut into equal pieces that are given out like units. Transfers, updates
/// and host memory are not modelled. Cost: at most about 500 decisions and one per job; beyond 256
/// jobs the lower bound of the makespan stands for every job's end.
std::vector<Nanoseconds> forecast_ends(const Policy& policy, std::size_t devices,
                                       std::span<const ForecastJob> jobs);

/// Forecasts, corrected by how much slower (or faster) than forecast the run has been so far.
///
/// Thread safety: thread-compatible. Lifetime: borrows the policy.
class TimeLeft {
 public:
  TimeLeft(const Policy& policy, std::size_t devices) : policy_(policy), devices_(devices) {}

  /// Returns each job's time to its end, at time `now`.
  std::vector<Nanoseconds> estimate(Nanoseconds now, std::span<const ForecastJob> jobs);

 private:
  void learn(Nanoseconds now, std::span<const ForecastJob> jobs, double makespan);

  const Policy& policy_;
  const std::size_t devices_;
  double slowness_ = 1;  ///< real time per forecast time
  bool learnt_ = false;
  // The forecast that progress is measured from.
  std::vector<JobId> jobs_;
  double makespan_ = 0;
  Nanoseconds since_{0};
};

}  // namespace hydra
