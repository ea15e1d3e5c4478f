#include <utility>

#include "hydra/device/device.h"

namespace hydra {

DeviceBuffer::DeviceBuffer(Device& device, Bytes size)
    : device_(&device), data_(static_cast<std::byte*>(device.allocate(size))), size_(size) {}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, Bytes(0))) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    release();
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, Bytes(0));
  }
  return *this;
}

void DeviceBuffer::release() noexcept {
  if (device_ != nullptr) device_->free(data_, size_);
  device_ = nullptr;
  data_ = nullptr;
  size_ = Bytes(0);
}

}  // namespace hydra
