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
  JobShared(JobId id, std::string name, std::int64_t max_steps, Plan plan,
            std::function<void()> request_cancel, std::function<void()> memory_released);

  JobId id() const { return id_; }
  const std::string& name() const { return name_; }
  const Plan& plan() const { return plan_; }

  // The coordinator's side.
  void begin(Nanoseconds now);
  void add_metrics(const StepMetrics& metrics, Nanoseconds time_left);
  void complete(Weights weights, std::string sha256, Nanoseconds now);
  void fail(JobState state, std::exception_ptr failure, Nanoseconds now);

  // The handles' side.
  JobStatus status() const;
  std::vector<StepMetrics> metrics() const;
  JobState wait() const;
  void cancel() const;
  std::exception_ptr failure() const;
  Weights final_weights() const;      ///< of a completed job, while a lease lives
  const std::string& sha256() const;  ///< of a completed job
  /// Keeps the final weights until the last copy of what it returns dies.
  std::shared_ptr<const void> lease();

 private:
  const JobId id_;
  const std::string name_;
  const std::int64_t max_steps_;
  const Plan plan_;
  const std::function<void()> request_cancel_;
  const std::function<void()> memory_released_;  ///< called once the final weights are gone

  mutable Mutex mutex_;
  mutable ConditionVariable ended_;
  JobState state_ HYDRA_GUARDED_BY(mutex_) = JobState::kQueued;
  std::exception_ptr failure_ HYDRA_GUARDED_BY(mutex_);
  std::vector<StepMetrics> metrics_ HYDRA_GUARDED_BY(mutex_);
  Nanoseconds begun_ HYDRA_GUARDED_BY(mutex_){0};
  Nanoseconds time_left_ HYDRA_GUARDED_BY(mutex_){0};
  Nanoseconds end_ HYDRA_GUARDED_BY(mutex_){0};
  Weights weights_ HYDRA_GUARDED_BY(mutex_);
  std::weak_ptr<const void> lease_ HYDRA_GUARDED_BY(mutex_);
  std::string sha256_;  // written once, before the state becomes kCompleted

  void release_weights();
};

/// Returns the message of an exception.
std::string message_of(const std::exception_ptr& failure);

}  // namespace hydra
