#pragma once

#include <atomic>
#include <chrono>

namespace hydra {

using Nanoseconds = std::chrono::nanoseconds;

/// Tells the time since an arbitrary start. Thread safety: thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now() const noexcept = 0;
};

/// Reads the system's steady clock; zero is the construction.
class SteadyClock final : public Clock {
 public:
  SteadyClock() : start_(std::chrono::steady_clock::now()) {}
  Nanoseconds now() const noexcept override { return std::chrono::steady_clock::now() - start_; }

 private:
  std::chrono::steady_clock::time_point start_;
};

/// Stands still until it is told to advance; for tests and simulation.
class ManualClock final : public Clock {
 public:
  Nanoseconds now() const noexcept override { return Nanoseconds(now_ns_.load()); }
  void advance(Nanoseconds by) { now_ns_ += by.count(); }

 private:
  std::atomic<std::int64_t> now_ns_{0};
};

/// Converts to seconds for people and files.
inline double seconds(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace hydra
