#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// Clang's thread-safety analysis attributes; nothing on other compilers.
#if defined(__clang__)
#define HYDRA_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HYDRA_THREAD_ATTRIBUTE(x)
#endif
#define HYDRA_CAPABILITY(x) HYDRA_THREAD_ATTRIBUTE(capability(x))
#define HYDRA_SCOPED_CAPABILITY HYDRA_THREAD_ATTRIBUTE(scoped_lockable)
#define HYDRA_GUARDED_BY(x) HYDRA_THREAD_ATTRIBUTE(guarded_by(x))
#define HYDRA_REQUIRES(...) HYDRA_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define HYDRA_ACQUIRE(...) HYDRA_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define HYDRA_RELEASE(...) HYDRA_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define HYDRA_NO_ANALYSIS HYDRA_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace hydra {

/// std::mutex with annotations. Held in leaf classes alone, never across a call-out.
class HYDRA_CAPABILITY("mutex") Mutex {
 public:
  void lock() HYDRA_ACQUIRE() { mutex_.lock(); }
  void unlock() HYDRA_RELEASE() { mutex_.unlock(); }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

/// Holds a Mutex for a scope.
class HYDRA_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HYDRA_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() HYDRA_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits on a held Mutex.
class ConditionVariable {
 public:
  void wait(Mutex& mutex) HYDRA_REQUIRES(mutex) HYDRA_NO_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  /// Returns false when the time is over.
  template <typename Rep, typename Period>
  bool wait_for(Mutex& mutex, std::chrono::duration<Rep, Period> time)
      HYDRA_REQUIRES(mutex) HYDRA_NO_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_for(lock, time) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace hydra
