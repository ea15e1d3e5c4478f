#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/log.h"
#include "hydra/core/trace.h"
#include "hydra/device/virtual_device.h"
#include "hydra/engine/job_handle.h"
#include "hydra/engine/job_options.h"
#include "hydra/io/extent_store.h"
#include "hydra/memory/tier_budget.h"
#include "hydra/report/run_summary.h"
#include "hydra/schedule/policy.h"

namespace hydra {

/// The machine that a runtime may use.
struct RuntimeOptions {
  /// The devices; at least one. Budgets may differ: a job must fit the smallest.
  std::vector<VirtualDeviceOptions> devices{};

  /// Budget of the host tier: parameters, moments, gradients and boundary activations of all jobs.
  /// 0 takes three quarters of the memory that this process may use (physical memory, or its
  /// cgroups' limit) less the devices' budgets.
  Bytes host_memory{};

  /// The storage tier. With at least one drive, parameters and moments of all jobs have their homes
  /// there, and host memory is a cache over it: bytes are written when they first have to leave it.
  struct Storage {
    std::vector<DriveOptions> drives{};  ///< directories, with the bytes to take of each
    BlockIoKind kind = BlockIoKind::kAutomatic;
    /// How much of `host_memory` is the cache; 0: half of it. A larger one moves fewer bytes and
    /// leaves less to gradients and activations.
    Bytes host_cache{};
  };
  Storage storage{};

  /// Torch threads of each device's worker. Part of what a result depends on. 0 shares the
  /// cores that this process may use (affinity, or its cgroups' quota) among the devices.
  int threads_per_device = 0;
  /// Threads for updates in the host tier; results do not depend on it.
  int update_threads = 1;
  /// Mini-batches that each job's loader prepares ahead.
  int loader_depth = 2;

  /// Chooses whose unit runs next. Null: Sharded-LRTF.
  std::shared_ptr<const Policy> policy{};
  /// Receives the run's trace; null: none.
  std::shared_ptr<TraceSink> trace{};
  /// Receives notices; null: none.
  std::shared_ptr<LogSink> log{};

  /// Appends a JSON line per job and step to this file (docs/formats/metrics.md); empty: none.
  /// Training never waits for it: what is lost is told by the log and RunSummary::lost_outputs.
  std::string metrics_file{};
  /// Writes TensorBoard event files below this directory, a run per job; empty: none.
  std::string tensorboard_directory{};

  /// Test settings; results do not depend on them.
  struct Debug {
    bool evict_at_once = false;        ///< nothing stays on a device that no unit holds
    bool reverse_ready_order = false;  ///< the youngest ready job first
    /// Wraps each drive's BlockIo, to plant faults.
    std::function<std::unique_ptr<BlockIo>(std::unique_ptr<BlockIo>)> wrap_drive{};
    /// Called on the coordinator's thread when a step has ended; an InternalError that it throws
    /// passes for a broken invariant, which ends every job.
    std::function<void()> at_step_end{};
  };
  Debug debug{};
};

/// Trains many models at once on one machine's devices.
///
/// Owns the devices, the host tier and the threads. Two runtimes in one process share nothing (but
/// the allocator shim under ATen). Destruction closes it.
/// Thread safety: thread-safe.
class Runtime {
 public:
  /// Errors: InvalidArgument for options out of range; StorageError when a drive is full, or its
  /// directory cannot be used; SystemError when a thread cannot start, or
  /// LibTorch is of another version than Hydra was built with, or a file for metrics cannot be
  /// made.
  explicit Runtime(RuntimeOptions options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Plans a job without starting it: shards, bytes per tier, predicted peak and step time.
  /// Blocks: while the pilot runs each layer once. Errors: as `submit`.
  Plan plan(const JobOptions& job);

  /// Plans a job and takes it in; it starts as soon as the host tier has room for it.
  /// Blocks: while the pilot runs each layer once (again only for another model or batch shape).
  /// A name that another job of this runtime has had is numbered: "lr 0.1", then "lr 0.1 (2)".
  /// Errors: InvalidArgument, Unsupported, DoesNotFit, OutOfHostMemory, DataError, LayerError,
  /// StorageError when the drives are too small; then nothing was started and other jobs go on.
  JobHandle submit(const JobOptions& job);

  /// Waits until every job submitted so far has ended. Keeps no weights meanwhile, unlike a handle.
  /// Blocks: until then.
  void wait_all();
  /// Asks every job submitted so far to end at its next step border (JobHandle::stop).
  void stop_all();
  /// Cancels what still runs and waits for it; `submit` and `plan` are refused from then on, also
  /// those that wait on other threads. What has been gathered stays readable. Idempotent.
  /// Blocks: until nothing is in flight.
  void close() noexcept;
  /// Returns handles to every job submitted so far, with what a handle holds.
  std::vector<JobHandle> jobs() const;
  /// Returns where every job submitted so far stands, in the order of submission.
  std::vector<JobStatus> statuses() const;

  /// What has been measured so far: jobs, devices, host tier, links.
  RunSummary summary() const;
  /// The host tier's budget, for inspection; with a storage tier less the cache over it.
  const TierBudget& host_budget() const;
  /// The budget of host copies of parts on storage; its capacity is 0 without a storage tier.
  const TierBudget& host_cache_budget() const;
  /// What jobs have been granted of the drives; null without a storage tier.
  const TierBudget* storage_budget() const;
  /// The devices' counters, in order.
  std::vector<DeviceStats> device_stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
