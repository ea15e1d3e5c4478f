#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "hydra/core/inbox.h"

namespace hydra {

/// Threads that run tasks in the order in which they were given, on any of the threads.
///
/// Tasks must not throw. Queue: bounded; `submit` waits for room when it is full.
/// Thread safety: thread-safe. Errors: SystemError when a thread cannot start.
class TaskPool {
 public:
  using Task = std::function<void()>;

  explicit TaskPool(int threads);
  ~TaskPool();

  void submit(Task task);
  /// Runs what was submitted, then stops the threads. Idempotent.
  void close() noexcept;

 private:
  Inbox<Task> inbox_;
  std::vector<std::thread> threads_;
};

}  // namespace hydra
