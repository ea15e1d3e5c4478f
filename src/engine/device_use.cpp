#include "engine/device_use.h"

namespace hydra {

std::optional<DeviceUse::Ended> DeviceUse::enter(std::size_t device, Activity activity,
                                                 Nanoseconds now) {
  MutexLock lock(mutex_);
  Present& present = devices_.at(device);
  if (present.activity == activity) return std::nullopt;
  const Ended ended{present.activity, present.since};
  present.spent[static_cast<std::size_t>(present.activity)] += now - present.since;
  present.activity = activity;
  present.since = now;
  return ended;
}

void DeviceUse::waited(std::size_t device, Nanoseconds time) {
  MutexLock lock(mutex_);
  Spent& spent = devices_.at(device).spent;
  spent[static_cast<std::size_t>(Activity::kBusy)] -= time;
  spent[static_cast<std::size_t>(Activity::kUnit)] += time;
}

DeviceUse::Spent DeviceUse::spent(std::size_t device, Nanoseconds now) const {
  MutexLock lock(mutex_);
  const Present& present = devices_.at(device);
  Spent spent = present.spent;
  spent[static_cast<std::size_t>(present.activity)] += now - present.since;
  return spent;
}

}  // namespace hydra
