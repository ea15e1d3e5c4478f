#pragma once

#include <chrono>

#include "hydra/core/clock.h"
#include "hydra/core/mutex.h"

namespace hydra {

/// How long a device's worker has been inside tasks, the one at work included.
/// Thread safety: thread-safe; a leaf lock.
class WorkerClock {
 public:
  void begin() {
    MutexLock lock(mutex_);
    begun_ = std::chrono::steady_clock::now();
    busy_ = true;
  }

  void end() {
    MutexLock lock(mutex_);
    total_ += std::chrono::steady_clock::now() - begun_;
    busy_ = false;
  }

  Nanoseconds total() const {
    MutexLock lock(mutex_);
    return busy_ ? total_ + (std::chrono::steady_clock::now() - begun_) : total_;
  }

 private:
  mutable Mutex mutex_;
  Nanoseconds total_ HYDRA_GUARDED_BY(mutex_){0};
  std::chrono::steady_clock::time_point begun_ HYDRA_GUARDED_BY(mutex_);
  bool busy_ HYDRA_GUARDED_BY(mutex_) = false;
};

}  // namespace hydra
