#include "engine/task_pool.h"

#include <system_error>

#include "hydra/core/check.h"

namespace hydra {
namespace {
constexpr std::size_t kQueuedTasks = 1 << 16;
}

TaskPool::TaskPool(int threads) : inbox_(kQueuedTasks) {
  try {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        while (auto task = inbox_.pop()) (*task)();
      });
    }
  } catch (const std::system_error& error) {
    close();
    throw SystemError(std::string("cannot start a worker thread: ") + error.what());
  }
}

TaskPool::~TaskPool() { close(); }

void TaskPool::submit(Task task) {
  const bool accepted = inbox_.push(std::move(task));
  HYDRA_CHECK(accepted, "the worker threads are closed");
}

void TaskPool::close() noexcept {
  inbox_.close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace hydra
