#include "hydra/memory/tier_budget.h"

#include <algorithm>
#include <utility>

#include "hydra/core/check.h"
#include "hydra/core/mutex.h"

namespace hydra {

struct Reservation::State {
  State(std::string given_name, Bytes given_capacity)
      : name(std::move(given_name)), capacity(given_capacity) {}

  const std::string name;
  const Bytes capacity;
  Mutex mutex;
  Bytes reserved HYDRA_GUARDED_BY(mutex);
  Bytes peak HYDRA_GUARDED_BY(mutex);
};

Reservation::Reservation(Reservation&& other) noexcept
    : state_(std::move(other.state_)), bytes_(std::exchange(other.bytes_, Bytes(0))) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    release();
    state_ = std::move(other.state_);
    bytes_ = std::exchange(other.bytes_, Bytes(0));
  }
  return *this;
}

void Reservation::release() noexcept {
  if (state_ == nullptr) return;
  {
    MutexLock lock(state_->mutex);
    state_->reserved -= bytes_;
  }
  bytes_ = Bytes(0);
  state_.reset();
}

Reservation Reservation::split(Bytes part) {
  HYDRA_CHECK(part >= Bytes(0) && part <= bytes_,
              to_string(part) + " cut off a reservation of " + to_string(bytes_));
  Reservation cut;
  cut.state_ = state_;
  cut.bytes_ = part;
  bytes_ -= part;
  return cut;
}

void Reservation::merge(Reservation&& other) {
  if (other.state_ == nullptr) return;
  if (state_ == nullptr) {
    *this = std::move(other);
    return;
  }
  HYDRA_CHECK(state_ == other.state_, "reservations of two budgets cannot be merged");
  bytes_ += std::exchange(other.bytes_, Bytes(0));
  other.state_.reset();
}

TierBudget::TierBudget(std::string name, Bytes capacity)
    : state_(std::make_shared<Reservation::State>(std::move(name), capacity)) {
  if (capacity < Bytes(0)) {
    throw InvalidArgument("the budget of " + state_->name + " is negative: " + to_string(capacity));
  }
}

std::optional<Reservation> TierBudget::try_reserve(Bytes bytes) {
  HYDRA_CHECK(bytes >= Bytes(0), "a negative reservation: " + to_string(bytes));
  MutexLock lock(state_->mutex);
  if (bytes > state_->capacity - state_->reserved) return std::nullopt;
  state_->reserved += bytes;
  state_->peak = std::max(state_->peak, state_->reserved);
  Reservation granted;
  granted.state_ = state_;
  granted.bytes_ = bytes;
  return granted;
}

const std::string& TierBudget::name() const noexcept { return state_->name; }

Bytes TierBudget::capacity() const noexcept { return state_->capacity; }

Bytes TierBudget::reserved() const noexcept {
  MutexLock lock(state_->mutex);
  return state_->reserved;
}

Bytes TierBudget::available() const noexcept { return capacity() - reserved(); }

Bytes TierBudget::peak() const noexcept {
  MutexLock lock(state_->mutex);
  return state_->peak;
}

}  // namespace hydra
