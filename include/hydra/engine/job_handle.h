#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hydra/core/clock.h"
#include "hydra/core/error.h"
#include "hydra/core/ids.h"
#include "hydra/engine/job_options.h"
#include "hydra/engine/step_metrics.h"
#include "hydra/model/plan.h"

namespace hydra {

class JobShared;

/// Where a job stands.
///
///   queued    -> running                      its host memory is granted and its weights are made
///   queued    -> failed, cancelled
///   running   -> completed                    all steps are settled
///   running   -> stopped                      the steps begun are settled, by request the last
///   running   -> failed, cancelled
enum class JobState { kQueued, kRunning, kCompleted, kStopped, kFailed, kCancelled };

/// Returns "queued", "running", "completed", "stopped", "failed" or "cancelled".
const char* to_string(JobState state);

/// A snapshot of a job.
struct JobStatus {
  std::string name;
  JobState state = JobState::kQueued;
  std::string reason;  ///< of a failure; of a queued job, what it waits for
  std::int64_t step = 0;
  std::int64_t max_steps = 0;
  double loss = 0;  ///< of the last finished step; NaN before the first
  double learning_rate = 0;
  double tokens_per_second = 0;
  Nanoseconds time_left{0};  ///< predicted; 0 when unknown
  Nanoseconds elapsed{0};    ///< since its first step began
};

/// The user's hold on a submitted job.
///
/// A value: copies name the same job. Thread safety: thread-safe. Lifetime: may outlive the
/// runtime, whose destruction cancels what still runs; a completed job's weights live (and count
/// against the host budget, or that of storage) as long as a handle does.
class JobHandle {
 public:
  explicit JobHandle(std::shared_ptr<JobShared> shared);

  JobId id() const;
  const std::string& name() const;
  const Plan& plan() const;
  JobStatus status() const;
  std::vector<StepMetrics> metrics() const;

  /// Waits until the job has ended, whatever the outcome, and returns it. Blocks: until then.
  JobState wait() const;
  /// Asks the job to end at the next unit border; returns at once. No effect on an ended job.
  void cancel() const;
  /// Asks the job to end at its next step border, with the weights it has then (kStopped); returns
  /// at once. A job that is still queued is cancelled. No effect on one that ends already.
  void stop() const;
  /// Waits, then throws what the job failed with (or Cancelled); a stopped job has not failed.
  /// Blocks: until the job has ended.
  void get() const;

  /// Returns copies of the final parameters and buffers. Errors: as `get`; of weights on storage,
  /// StorageError or CorruptionError when they cannot be read, InvalidArgument once the runtime has
  /// gone. Blocks: as `get`, and while they are read.
  Weights weights() const;
  /// Returns the SHA-256 over all parameters' bytes in model order, in hexadecimal.
  /// Errors: as `get`. Blocks: as `get`.
  std::string parameters_sha256() const;

 private:
  std::shared_ptr<JobShared> shared_;
  std::shared_ptr<const void> lease_;  ///< keeps the final weights while any handle lives
};

}  // namespace hydra
