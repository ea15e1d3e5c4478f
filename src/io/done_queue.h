#pragma once

#include <chrono>
#include <vector>

#include "hydra/core/mutex.h"
#include "hydra/io/block_io.h"

namespace hydra {

/// Where a `BlockIo` without a queue of the system's own keeps what has ended until it is waited
/// for. Thread safety: thread-safe; a leaf lock.
class DoneQueue {
 public:
  void push(BlockDone done) {
    {
      MutexLock lock(mutex_);
      done_.push_back(done);
    }
    arrived_.notify_one();
  }

  /// As BlockIo::wait.
  void wait(std::vector<BlockDone>& done, Nanoseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    MutexLock lock(mutex_);
    while (done_.empty() && !woken_) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= Nanoseconds(0)) return;
      arrived_.wait_for(mutex_, left);
    }
    woken_ = false;
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
  }

  /// As BlockIo::wake.
  void wake() noexcept {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    arrived_.notify_one();
  }

 private:
  Mutex mutex_;
  ConditionVariable arrived_;
  std::vector<BlockDone> done_ HYDRA_GUARDED_BY(mutex_);
  bool woken_ HYDRA_GUARDED_BY(mutex_) = false;
};

}  // namespace hydra
