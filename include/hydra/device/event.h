#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>

namespace hydra {

/// A point in a stream's order that fires once everything before it is done.
///
/// A value: copies share the point. A default-constructed event has fired.
/// Thread safety: thread-safe.
class Event {
 public:
  using Callback = std::function<void()>;

  Event() = default;

  bool fired() const noexcept;
  /// Waits until it has fired and called its callbacks, and rethrows the failure of the operation
  /// that it stands for. Blocks: until then.
  void wait() const;
  /// The failure of the operation that it stands for, once fired; null when there was none.
  std::exception_ptr failure() const noexcept;
  /// Calls `callback` once, after those that were given before it: on the stream's thread when it
  /// fires, or at once if it has fired. The callback must be brief, must not throw, must not call
  /// the device, and must not wait for this event.
  void then(Callback callback) const;

  /// Returns an event that has not fired, for implementations of devices.
  static Event pending();
  /// Fires a pending event; for implementations of devices.
  void fire(std::exception_ptr failure) const;

 private:
  struct State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Returns the first failure among events that have all fired, or null.
std::exception_ptr first_failure(std::span<const Event> events) noexcept;

}  // namespace hydra
