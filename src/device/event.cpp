#include "hydra/device/event.h"

#include <atomic>
#include <utility>
#include <vector>

#include "hydra/core/mutex.h"

namespace hydra {

struct Event::State {
  mutable Mutex mutex;
  ConditionVariable fired_condition;
  std::atomic<bool> fired{false};
  std::exception_ptr failure;  // written once, before `fired`
  std::vector<Callback> callbacks HYDRA_GUARDED_BY(mutex);
  bool calling HYDRA_GUARDED_BY(mutex) = false;  // it has fired and goes through `callbacks`
};

bool Event::fired() const noexcept { return state_ == nullptr || state_->fired.load(); }

void Event::wait() const {
  if (state_ == nullptr) return;
  {
    MutexLock lock(state_->mutex);
    while (!state_->fired.load() || state_->calling) {
      state_->fired_condition.wait(state_->mutex);
    }
  }
  if (state_->failure != nullptr) std::rethrow_exception(state_->failure);
}

std::exception_ptr Event::failure() const noexcept {
  return state_ != nullptr && state_->fired.load() ? state_->failure : nullptr;
}

void Event::then(Callback callback) const {
  if (state_ != nullptr) {
    MutexLock lock(state_->mutex);
    if (!state_->fired.load() || state_->calling) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

Event Event::pending() { return Event(std::make_shared<State>()); }

void Event::fire(std::exception_ptr failure) const {
  const std::shared_ptr<State> state = state_;  // a callback may drop the last event
  std::vector<Callback> callbacks;
  {
    MutexLock lock(state->mutex);
    state->failure = std::move(failure);
    state->calling = true;
    state->fired.store(true);
  }
  while (true) {
    {
      MutexLock lock(state->mutex);
      callbacks.swap(state->callbacks);
      if (callbacks.empty()) {
        state->calling = false;
        break;
      }
    }
    for (const Callback& callback : callbacks) callback();
    callbacks.clear();
  }
  state->fired_condition.notify_all();
}

std::exception_ptr first_failure(std::span<const Event> events) noexcept {
  for (const Event& event : events) {
    if (auto failure = event.failure()) return failure;
  }
  return nullptr;
}

}  // namespace hydra
