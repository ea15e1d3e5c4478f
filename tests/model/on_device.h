#pragma once

#include <exception>
#include <future>
#include <utility>

#include "hydra/device/virtual_device.h"

namespace hydra {

/// Runs `work` as a task of the device; throws what it throws.
template <typename Work>
void on_device(Device& device, Work work) {
  std::promise<void> done;
  device.submit([&] {
    try {
      work();
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.get_future().get();
}

inline VirtualDeviceOptions device_of(Bytes memory, const char* name = "cpu0") {
  VirtualDeviceOptions options;
  options.name = name;
  options.memory = memory;
  return options;
}

}  // namespace hydra
