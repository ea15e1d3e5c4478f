#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/log.h"
#include "hydra/core/trace.h"
#include "hydra/device/virtual_device.h"
#include "hydra/engine/job_handle.h"
#include "hydra/engine/job_options.h"
#include "hydra/memory/tier_budget.h"
#include "hydra/report/run_summary.h"
#include "hydra/schedule/policy.h"

namespace hydra {

/// The machine that a runtime may use.
struct RuntimeOptions {
  /// The devices; at least one. Budgets may differ: a job must fit the smallest.
  std::vector<VirtualDeviceOptions> devices{};

  /// Budget of the host tier: parameters, moments, gradients and boundary activations of all jobs.
  /// 0 takes three quarters of the machine's memory less the devices' budgets.
  Bytes host_memory{};

  /// Torch threads of each device's worker. Part of what a result depends on. 0 shares the
  /// machine's cores among the devices.
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
  std::string metrics_file{};
  /// Writes TensorBoard event files below this directory, a run per job; empty: none.
  std::string tensorboard_directory{};

  /// Test settings; results do not depend on them.
  struct Debug {
    bool evict_at_once = false;        ///< nothing stays on a device that no unit holds
    bool reverse_ready_order = false;  ///< the youngest ready job first
  };
  Debug debug{};
};

/// Trains many models at once on one machine's devices.
///
/// Owns the devices, the host tier and the threads. Two runtimes in one process share nothing (but
/// the allocator shim under ATen). Destruction cancels what still runs and waits for it.
/// Thread safety: thread-safe.
class Runtime {
 public:
  /// Errors: InvalidArgument for options out of range; SystemError when a thread cannot start, or
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
  /// Errors: InvalidArgument, Unsupported, DoesNotFit, OutOfHostMemory, DataError, LayerError; then
  /// nothing was started and other jobs go on.
  JobHandle submit(const JobOptions& job);

  /// Waits until every job submitted so far has ended. Blocks: until then.
  void wait_all();
  std::vector<JobHandle> jobs() const;

  /// What has been measured so far: jobs, devices, host tier, links.
  RunSummary summary() const;
  /// The host tier's budget, for inspection.
  const TierBudget& host_budget() const;
  /// The devices' counters, in order.
  std::vector<DeviceStats> device_stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
