#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"
#include "hydra/core/ids.h"

namespace hydra {

/// What a policy may know of a job that has a unit to give out.
struct JobView {
  JobId id;
  std::int64_t priority = 0;      ///< larger is more urgent; used by priority policies
  Nanoseconds remaining{0};       ///< predicted compute time from its next unit to its end
  Nanoseconds unit{0};            ///< predicted compute time of its next unit
  Bytes missing;                  ///< bytes of the next unit that are not on the asking device
  DeviceId last_device;           ///< where its previous unit ran; invalid before the first
  std::int64_t units_served = 0;  ///< units given to it so far
  /// Units given to all jobs since it was given its last one, or since it came. What a job is owed
  /// by this measure is one turn, however long it was away: nobody catches up.
  std::int64_t units_waited = 0;
  /// Its previous unit is still at work on the asking device: the next one has to wait for its end
  /// and for what it hands on, while a unit of another job could start at once.
  bool running = false;
};

/// What is known when `device` asks for work. All `jobs` are eligible on it.
struct ScheduleView {
  DeviceId device;
  std::span<const JobView> jobs;
};

/// Which job's next unit runs, and why (a literal for the trace).
struct Decision {
  std::size_t job = 0;  ///< index into ScheduleView::jobs
  std::string_view reason;
};

/// Chooses the next unit for a device: a pure function of the view.
///
/// Thread safety: const calls may come from any thread at once. Errors: must not throw.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const noexcept = 0;
  /// Returns empty only when `view.jobs` is empty.
  virtual std::optional<Decision> choose(const ScheduleView& view) const = 0;
};

/// Sharded-LRTF: the job with the longest remaining total time first; a job whose shard is already
/// on the device is kept while its remaining time is within `stickiness` of the longest.
/// A job whose previous unit is still running gives way to others within the same margin, which
/// fill the gap between its units. Ties go to fewer missing bytes, then to the older job.
/// Source: Nagrecha and Kumar, Hydra: A System for Large Multi-Model Deep Learning, 2021,
/// section "Sharded-LRTF"; stickiness and the transfer-aware tie are ours.
std::unique_ptr<Policy> make_sharded_lrtf_policy(double stickiness = 0.05);
/// The oldest job first, of those that are not running.
std::unique_ptr<Policy> make_fifo_policy();
/// The job that has waited for the most units first; ties go to the older job. So jobs take turns,
/// and one that comes late, or was kept away, gets no more than its turn.
std::unique_ptr<Policy> make_round_robin_policy();
/// The job with the shortest remaining time first: finished models come early, the makespan is
/// longer. Those that are not running first; ties go to the older job. A long job waits as long as
/// shorter ones keep coming.
std::unique_ptr<Policy> make_shortest_policy();
/// Shares by priority: how long a job has waited counts twice that of one whose priority is one
/// lower, which gives it about twice the units, and nobody starves or catches up. Differences
/// beyond 32 count as 32. Ties go to the higher priority, then to the older job.
std::unique_ptr<Policy> make_priority_policy();
/// Any job, each equally likely: a function of `seed`, the device and the units given out so far.
std::unique_ptr<Policy> make_random_policy(std::uint64_t seed = 0);

/// Makes a policy from one of policy_names(). Errors: InvalidArgument lists them.
std::unique_ptr<Policy> make_policy(std::string_view name);
/// "lrtf", "fifo", "round-robin", "shortest", "priority", "random".
std::span<const std::string_view> policy_names();

}  // namespace hydra
