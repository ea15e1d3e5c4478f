#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "hydra/core/clock.h"
#include "hydra/core/mutex.h"

namespace hydra {

/// A queue of messages with many senders and one receiver.
///
/// Bound: `capacity` messages; `push` waits for room when it is full and returns false once the
/// inbox is closed. Messages that were pushed before the closing can still be taken.
/// Thread safety: thread-safe.
template <typename T>
class Inbox {
 public:
  explicit Inbox(std::size_t capacity) : capacity_(capacity) {}

  /// Blocks: while the inbox is full.
  bool push(T message) {
    {
      MutexLock lock(mutex_);
      while (!closed_ && messages_.size() >= capacity_) not_full_.wait(mutex_);
      if (closed_) return false;
      messages_.push_back(std::move(message));
    }
    not_empty_.notify_one();
    return true;
  }

  /// As push, but never waits: returns false when the inbox is full or closed.
  bool try_push(T message) {
    {
      MutexLock lock(mutex_);
      if (closed_ || messages_.size() >= capacity_) return false;
      messages_.push_back(std::move(message));
    }
    not_empty_.notify_one();
    return true;
  }

  /// Takes the oldest message; empty once the inbox is closed and drained. Blocks: until then.
  std::optional<T> pop() {
    std::optional<T> message = wait_and_take();
    not_full_.notify_one();
    return message;
  }

  /// Takes the oldest message if there is one.
  std::optional<T> try_pop() {
    std::optional<T> message = take_now();
    not_full_.notify_one();
    return message;
  }

  /// True when nothing can be taken at this moment.
  bool empty() const {
    MutexLock lock(mutex_);
    return messages_.empty();
  }

  /// Refuses further messages and wakes everyone.
  void close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }

 private:
  std::optional<T> wait_and_take() {
    MutexLock lock(mutex_);
    while (!closed_ && messages_.empty()) not_empty_.wait(mutex_);
    return take();
  }

  std::optional<T> take_now() {
    MutexLock lock(mutex_);
    return take();
  }

  std::optional<T> take() HYDRA_REQUIRES(mutex_) {
    if (messages_.empty()) return std::nullopt;
    std::optional<T> message(std::move(messages_.front()));
    messages_.pop_front();
    return message;
  }

  const std::size_t capacity_;
  mutable Mutex mutex_;
  ConditionVariable not_empty_;
  ConditionVariable not_full_;
  std::deque<T> messages_ HYDRA_GUARDED_BY(mutex_);
  bool closed_ HYDRA_GUARDED_BY(mutex_) = false;
};

}  // namespace hydra
