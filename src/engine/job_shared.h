#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hydra/core/mutex.h"
#include "hydra/engine/job_handle.h"

namespace hydra {

/// What the coordinator writes and the handles read of one job.
///
/// Thread safety: thread-safe; a leaf lock.
class JobShared : public std::enable_shared_from_this<JobShared> {
 public:
  /// What handles ask of the coordinator.
  struct Requests {
    std::function<void()> cancel;
    std::function<void()> stop;
    std::function<void()> release;          ///< the final weights are wanted no more
    std::function<Weights()> read_weights;  ///< from storage; blocks; throws when it cannot be
  };

  JobShared(JobId id, std::string name, std::int64_t max_steps, Plan plan, Requests requests);

  JobId id() const { return id_; }
  const std::string& name() const { return name_; }
  const Plan& plan() const { return plan_; }

  // The coordinator's side.
  void begin(Nanoseconds now);
  /// Why the job is queued.
  void wait_for(std::string what);
  void add_metrics(const StepMetrics& metrics);
  void expect_end_in(Nanoseconds time_left);
  /// Ends well: `state` is kCompleted or kStopped. Returns false, and drops the weights, when no
  /// handle wants them any more.
  bool complete(JobState state, Weights weights, std::string sha256, Nanoseconds now);
  /// The same of a job whose weights are on storage.
  bool complete_on_storage(JobState state, std::string sha256, Nanoseconds now);
  void fail(JobState state, std::exception_ptr failure, Nanoseconds now);

  // The handles' side.
  JobStatus status() const;
  std::vector<StepMetrics> metrics() const;
  JobState wait() const;
  void cancel() const;
  void stop() const;
  std::exception_ptr failure() const;
  /// Copies of a completed job's final weights; empty when no lease lives. Errors: of reading them.
  Weights copy_of_weights() const;
  const std::string& sha256() const;  ///< of a job that ended well
  /// Keeps the final weights until the last copy of what it returns dies.
  std::shared_ptr<const void> lease();

 private:
  const JobId id_;
  const std::string name_;
  const std::int64_t max_steps_;
  const Plan plan_;

  mutable Mutex mutex_;
  Requests requests_
      HYDRA_GUARDED_BY(mutex_);  ///< those that an ended job answers no more are empty
  mutable ConditionVariable ended_;
  JobState state_ HYDRA_GUARDED_BY(mutex_) = JobState::kQueued;
  std::exception_ptr failure_ HYDRA_GUARDED_BY(mutex_);
  std::vector<StepMetrics> metrics_ HYDRA_GUARDED_BY(mutex_);
  Nanoseconds begun_ HYDRA_GUARDED_BY(mutex_){0};
  Nanoseconds time_left_ HYDRA_GUARDED_BY(mutex_){0};
  Nanoseconds end_ HYDRA_GUARDED_BY(mutex_){0};
  Weights weights_ HYDRA_GUARDED_BY(mutex_);
  bool weights_on_storage_ HYDRA_GUARDED_BY(mutex_) = false;
  std::weak_ptr<const void> lease_ HYDRA_GUARDED_BY(mutex_);
  std::string waits_for_ HYDRA_GUARDED_BY(mutex_);
  std::string sha256_;  // written once, before the state says that the job ended well

  void release_weights();
  void end(JobState state, Nanoseconds now) HYDRA_REQUIRES(mutex_);
  Requests requests() const;
};

/// Returns the message of an exception.
std::string message_of(const std::exception_ptr& failure);

}  // namespace hydra
