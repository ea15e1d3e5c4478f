#pragma once

namespace hydra {

class Device;

/// Returns the device whose task the calling thread is running, or nullptr.
Device* current_device() noexcept;

/// Makes a device current on this thread for a scope; nests.
class ScopedCurrentDevice {
 public:
  explicit ScopedCurrentDevice(Device* device) noexcept;
  ~ScopedCurrentDevice();
  ScopedCurrentDevice(const ScopedCurrentDevice&) = delete;
  ScopedCurrentDevice& operator=(const ScopedCurrentDevice&) = delete;

 private:
  Device* previous_;
};

}  // namespace hydra
