#include "engine/job_shared.h"

#include <limits>
#include <utility>

#include "model/exception_text.h"

namespace hydra {
namespace {

bool has_ended(JobState state) { return state != JobState::kQueued && state != JobState::kRunning; }

}  // namespace

std::string message_of(const std::exception_ptr& failure) {
  if (failure == nullptr) return "";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return exception_text(error);
  } catch (...) {
    return "an exception of unknown type";
  }
}

const char* to_string(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "queued";
    case JobState::kRunning:
      return "running";
    case JobState::kCompleted:
      return "completed";
    case JobState::kStopped:
      return "stopped";
    case JobState::kFailed:
      return "failed";
    case JobState::kCancelled:
      return "cancelled";
  }
  return "?";
}

JobShared::JobShared(JobId id, std::string name, std::int64_t max_steps, Plan plan,
                     Requests requests)
    : id_(id),
      name_(std::move(name)),
      max_steps_(max_steps),
      plan_(std::move(plan)),
      requests_(std::move(requests)) {}

void JobShared::wait_for(std::string what) {
  MutexLock lock(mutex_);
  waits_for_ = std::move(what);
}

JobShared::Requests JobShared::requests() const {
  MutexLock lock(mutex_);
  return requests_;
}

void JobShared::begin(Nanoseconds now) {
  MutexLock lock(mutex_);
  state_ = JobState::kRunning;
  begun_ = now;
}

void JobShared::add_metrics(const StepMetrics& metrics) {
  MutexLock lock(mutex_);
  metrics_.push_back(metrics);
}

void JobShared::expect_end_in(Nanoseconds time_left) {
  MutexLock lock(mutex_);
  time_left_ = time_left;
}

bool JobShared::complete(JobState state, Weights weights, std::string sha256, Nanoseconds now) {
  bool wanted = false;
  Requests over;  // what they hold goes outside the lock
  {
    MutexLock lock(mutex_);
    wanted = !lease_.expired();
    if (wanted) weights_ = std::move(weights);
    sha256_ = std::move(sha256);
    end(state, now);
    over.read_weights.swap(requests_.read_weights);
  }
  ended_.notify_all();
  return wanted;
}

bool JobShared::complete_on_storage(JobState state, std::string sha256, Nanoseconds now) {
  bool wanted = false;
  {
    MutexLock lock(mutex_);
    wanted = !lease_.expired();
    weights_on_storage_ = wanted;
    sha256_ = std::move(sha256);
    end(state, now);
  }
  ended_.notify_all();
  return wanted;
}

void JobShared::fail(JobState state, std::exception_ptr failure, Nanoseconds now) {
  Requests over;  // what they hold goes outside the lock
  {
    MutexLock lock(mutex_);
    failure_ = std::move(failure);
    end(state, now);
    std::swap(over, requests_);
  }
  ended_.notify_all();
}

void JobShared::end(JobState state, Nanoseconds now) {
  end_ = now;
  time_left_ = Nanoseconds(0);
  state_ = state;
}

JobStatus JobShared::status() const {
  JobStatus status;
  status.name = name_;
  status.max_steps = max_steps_;
  MutexLock lock(mutex_);
  status.state = state_;
  if (state_ == JobState::kFailed) status.reason = message_of(failure_);
  if (state_ == JobState::kQueued) status.reason = waits_for_;
  status.step = static_cast<std::int64_t>(metrics_.size());
  status.loss = std::numeric_limits<double>::quiet_NaN();
  status.time_left = time_left_;
  if (metrics_.empty()) return status;
  status.loss = metrics_.back().loss;
  status.learning_rate = metrics_.back().learning_rate;
  std::int64_t tokens = 0;
  for (const StepMetrics& step : metrics_) tokens += step.tokens;
  const Nanoseconds last = has_ended(state_) ? end_ : metrics_.back().end;
  status.elapsed = last - begun_;
  const double elapsed = seconds(status.elapsed);
  if (elapsed > 0) status.tokens_per_second = static_cast<double>(tokens) / elapsed;
  return status;
}

std::vector<StepMetrics> JobShared::metrics() const {
  MutexLock lock(mutex_);
  return metrics_;
}

JobState JobShared::wait() const {
  MutexLock lock(mutex_);
  while (!has_ended(state_)) ended_.wait(mutex_);
  return state_;
}

void JobShared::cancel() const {
  if (const Requests asked = requests(); asked.cancel) asked.cancel();
}

void JobShared::stop() const {
  if (const Requests asked = requests(); asked.stop) asked.stop();
}

std::exception_ptr JobShared::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

Weights JobShared::copy_of_weights() const {
  Weights final;
  bool stored = false;
  {
    MutexLock lock(mutex_);
    final = weights_;
    stored = weights_on_storage_;
  }
  if (stored) return requests().read_weights();
  Weights copies;
  for (const auto& [name, tensor] : final) {
    copies.emplace_back(name, tensor.clone());
  }
  return copies;
}

std::shared_ptr<const void> JobShared::lease() {
  MutexLock lock(mutex_);
  if (auto known = lease_.lock()) return known;
  const std::shared_ptr<const void> made(this, [self = weak_from_this()](const void*) {
    if (const auto shared = self.lock()) shared->release_weights();
  });
  lease_ = made;
  return made;
}

void JobShared::release_weights() {
  Weights dropped;
  bool stored = false;
  {
    MutexLock lock(mutex_);
    if (!lease_.expired()) return;
    dropped.swap(weights_);
    stored = std::exchange(weights_on_storage_, false);
  }
  if (dropped.empty() && !stored) return;
  dropped.clear();  // outside the lock, and before anyone is told
  Requests over;
  {
    MutexLock lock(mutex_);
    std::swap(over, requests_);
  }
  over.release();
}

const std::string& JobShared::sha256() const { return sha256_; }

JobHandle::JobHandle(std::shared_ptr<JobShared> shared)
    : shared_(std::move(shared)), lease_(shared_->lease()) {}

JobId JobHandle::id() const { return shared_->id(); }

const std::string& JobHandle::name() const { return shared_->name(); }

const Plan& JobHandle::plan() const { return shared_->plan(); }

JobStatus JobHandle::status() const { return shared_->status(); }

std::vector<StepMetrics> JobHandle::metrics() const { return shared_->metrics(); }

JobState JobHandle::wait() const { return shared_->wait(); }

void JobHandle::cancel() const { shared_->cancel(); }

void JobHandle::stop() const { shared_->stop(); }

void JobHandle::get() const {
  shared_->wait();
  if (const auto failure = shared_->failure()) std::rethrow_exception(failure);
}

Weights JobHandle::weights() const {
  get();
  Weights copies = shared_->copy_of_weights();
  if (copies.empty()) {
    throw InvalidArgument("the weights of job \"" + name() +
                          "\" went with its last handle: keep one");
  }
  return copies;
}

std::string JobHandle::parameters_sha256() const {
  get();
  return shared_->sha256();
}

}  // namespace hydra
