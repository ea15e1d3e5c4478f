#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "hydra/core/clock.h"
#include "hydra/core/mutex.h"

namespace hydra {

/// What a device does at a moment.
enum class Activity {
  kBusy,      ///< a unit (or a pilot) is at work
  kTransfer,  ///< its next unit's shard is not there yet
  kUnit,      ///< another unit or an update has to end first, or its gradients to leave
  kInput,     ///< every job waits for data, host memory, its weights or a callback
  kIdle,      ///< there is no job
};
constexpr std::size_t kActivities = 5;

/// How each device's time was spent: the sum over its activities is the time that has passed.
/// Thread safety: thread-safe; a leaf lock.
class DeviceUse {
 public:
  using Spent = std::array<Nanoseconds, kActivities>;  ///< by Activity

  DeviceUse(std::size_t devices, Nanoseconds now) : devices_(devices, {Activity::kIdle, now, {}}) {}

  /// What a device did, and since when, until it began something else.
  struct Ended {
    Activity activity;
    Nanoseconds since;
  };

  /// From `now` on the device does this; returns what has ended, unless it goes on.
  std::optional<Ended> enter(std::size_t device, Activity activity, Nanoseconds now);
  /// Of the time that was counted as busy, this was a wait for another unit.
  void waited(std::size_t device, Nanoseconds time);
  Spent spent(std::size_t device, Nanoseconds now) const;

 private:
  struct Present {
    Activity activity;
    Nanoseconds since;
    Spent spent;
  };

  mutable Mutex mutex_;
  std::vector<Present> devices_ HYDRA_GUARDED_BY(mutex_);
};

}  // namespace hydra
