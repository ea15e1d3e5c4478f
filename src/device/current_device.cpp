#include "hydra/device/current_device.h"

namespace hydra {
namespace {
thread_local Device* current = nullptr;
}

Device* current_device() noexcept { return current; }

ScopedCurrentDevice::ScopedCurrentDevice(Device* device) noexcept : previous_(current) {
  current = device;
}

ScopedCurrentDevice::~ScopedCurrentDevice() { current = previous_; }

}  // namespace hydra
