#include "hydra/data/batch_loader.h"

#include <deque>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "hydra/core/error.h"
#include "hydra/core/mutex.h"

namespace hydra {

struct BatchLoader::Impl {
  void run(std::int64_t first_step, std::int64_t end_step) {
    load(first_step, end_step);
    std::function<void()> stopped;
    {
      MutexLock lock(mutex);
      finished = true;
      stopped = std::move(on_stopped);
    }
    if (stopped) stopped();
  }

  void load(std::int64_t first_step, std::int64_t end_step) {
    for (std::int64_t step = first_step; step < end_step; ++step) {
      if (!wait_for_room()) return;
      Batch batch;
      std::exception_ptr caught;
      try {
        batch = source->batch(step);
      } catch (...) {
        caught = std::current_exception();
      }
      {
        MutexLock lock(mutex);
        if (closed) return;
        if (caught != nullptr) {
          failure = caught;
        } else {
          ready.push_back(std::move(batch));
        }
      }
      on_ready();
      if (caught != nullptr) return;
    }
  }

  bool wait_for_room() {
    MutexLock lock(mutex);
    while (!closed && ready.size() >= depth) room.wait(mutex);
    return !closed;
  }

  std::shared_ptr<DataSource> source;
  std::size_t depth = 1;
  std::function<void()> on_ready;
  Mutex mutex;
  ConditionVariable room;
  std::deque<Batch> ready HYDRA_GUARDED_BY(mutex);
  std::exception_ptr failure HYDRA_GUARDED_BY(mutex);
  bool closed HYDRA_GUARDED_BY(mutex) = false;
  bool finished HYDRA_GUARDED_BY(mutex) = false;  // the source is not called any more
  std::function<void()> on_stopped HYDRA_GUARDED_BY(mutex);
  std::thread thread;
};

BatchLoader::BatchLoader(std::shared_ptr<DataSource> source, std::int64_t first_step,
                         std::int64_t end_step, std::size_t queue_depth,
                         std::function<void()> on_ready)
    : impl_(std::make_unique<Impl>()) {
  if (source == nullptr) throw InvalidArgument("a batch loader needs a data source, got none");
  if (queue_depth < 1) throw InvalidArgument("a batch loader's queue needs room for one batch");
  impl_->source = std::move(source);
  impl_->depth = queue_depth;
  impl_->on_ready = std::move(on_ready);
  try {
    impl_->thread = std::thread(
        [impl = impl_.get(), first_step, end_step] { impl->run(first_step, end_step); });
  } catch (const std::system_error& error) {
    throw SystemError(std::string("cannot start a batch loader: ") + error.what());
  }
}

BatchLoader::~BatchLoader() { close(); }

bool BatchLoader::try_take(Batch& batch) {
  std::exception_ptr failure;
  {
    MutexLock lock(impl_->mutex);
    if (!impl_->ready.empty()) {
      batch = std::move(impl_->ready.front());
      impl_->ready.pop_front();
    } else if (impl_->failure == nullptr) {
      return false;
    } else {
      failure = impl_->failure;
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  impl_->room.notify_one();
  return true;
}

void BatchLoader::stop(std::function<void()> on_stopped) {
  bool finished = false;
  {
    MutexLock lock(impl_->mutex);
    impl_->closed = true;
    finished = impl_->finished;
    if (!finished) impl_->on_stopped = on_stopped;
  }
  impl_->room.notify_all();
  if (finished) on_stopped();
}

void BatchLoader::close() noexcept {
  {
    MutexLock lock(impl_->mutex);
    impl_->closed = true;
  }
  impl_->room.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace hydra
