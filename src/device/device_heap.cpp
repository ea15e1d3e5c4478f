#include "device/device_heap.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "hydra/core/error.h"

namespace hydra {
namespace {
constexpr int kPoison = 0xDB;
}

DeviceHeap::DeviceHeap(std::string device, Bytes budget, bool poison)
    : device_(std::move(device)),
      budget_(budget),
      poison_(poison),
      pages_(budget),
      small_free_(kSmallBytes / kClassBytes + 1) {}

DeviceHeap::~DeviceHeap() {
  MutexLock lock(mutex_);
  drop_small();
}

Bytes DeviceHeap::rounded(Bytes bytes) noexcept {
  if (bytes <= Bytes(0)) return Bytes(kClassBytes);
  if (bytes.count() > INT64_MAX - PagePool::kPageBytes) return bytes;  // fits no budget anyway
  return bytes < Bytes(kSmallBytes) ? bytes.rounded_up(kClassBytes)
                                    : bytes.rounded_up(PagePool::kPageBytes);
}

void* DeviceHeap::allocate(Bytes bytes) {
  const Bytes size = rounded(bytes);
  MutexLock lock(mutex_);
  const bool planted = allocations_++ == fail_at_;
  if (planted || size > budget_ - in_use_) {
    throw OutOfDeviceMemory(device_, bytes, in_use_, budget_);
  }
  void* data = nullptr;
  if (size < Bytes(kSmallBytes)) {
    data = allocate_small(size);
  } else {
    // Warm memory of small classes gives way to what is asked for.
    if (pages_.stats().used + size + small_held_ > budget_) drop_small();
    const Bytes room = budget_ - small_held_ - pages_.stats().used - size;
    pages_.trim_to(std::max(room, Bytes(0)) + size);
    data = pages_.allocate(size);
    if (data == nullptr) throw OutOfDeviceMemory(device_, bytes, in_use_, budget_);
    const auto stats = pages_.stats();
    if (stats.used + stats.free_warm + small_held_ > budget_) {
      pages_.trim_to(std::max(budget_ - stats.used - small_held_, Bytes(0)));
    }
  }
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  return data;
}

void* DeviceHeap::allocate_small(Bytes size) {
  auto& free = small_free_[static_cast<std::size_t>(size.count() / kClassBytes)];
  if (!free.empty()) {
    void* data = free.back();
    free.pop_back();
    return data;
  }
  const auto stats = pages_.stats();
  if (stats.used + stats.free_warm + small_held_ + size > budget_) {
    drop_small();
    pages_.trim_to(std::max(budget_ - stats.used - small_held_ - size, Bytes(0)));
  }
  void* data = std::aligned_alloc(kClassBytes, size.size());
  if (data == nullptr) throw SystemError("the system refuses " + to_string(size) + " of memory");
  small_held_ += size;
  return data;
}

void DeviceHeap::drop_small() noexcept {
  for (std::size_t c = 0; c < small_free_.size(); ++c) {
    for (void* data : small_free_[c]) std::free(data);
    small_held_ -= Bytes(static_cast<std::int64_t>(c) * kClassBytes) *
                   static_cast<std::int64_t>(small_free_[c].size());
    small_free_[c].clear();
  }
}

void DeviceHeap::free(void* data, Bytes bytes) noexcept {
  const Bytes size = rounded(bytes);
  if (poison_) std::memset(data, kPoison, size.size());
  MutexLock lock(mutex_);
  in_use_ -= size;
  if (size < Bytes(kSmallBytes)) {
    small_free_[static_cast<std::size_t>(size.count() / kClassBytes)].push_back(data);
  } else {
    pages_.free(static_cast<std::byte*>(data), size);
  }
}

void DeviceHeap::trim() noexcept {
  MutexLock lock(mutex_);
  drop_small();
  pages_.trim();
}

Bytes DeviceHeap::in_use() const noexcept {
  MutexLock lock(mutex_);
  return in_use_;
}

Bytes DeviceHeap::peak() const noexcept {
  MutexLock lock(mutex_);
  return peak_;
}

Bytes DeviceHeap::held() const noexcept {
  MutexLock lock(mutex_);
  const auto stats = pages_.stats();
  return stats.used + stats.free_warm + small_held_;
}

void DeviceHeap::reset_peak() noexcept {
  MutexLock lock(mutex_);
  peak_ = in_use_;
}

void DeviceHeap::fail_after(std::int64_t n) noexcept {
  MutexLock lock(mutex_);
  fail_at_ = n < 0 ? -1 : allocations_ + n;
}

std::int64_t DeviceHeap::allocations() const noexcept {
  MutexLock lock(mutex_);
  return allocations_;
}

}  // namespace hydra
