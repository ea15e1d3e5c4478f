#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/mutex.h"
#include "hydra/memory/page_pool.h"

namespace hydra {

/// A virtual device's memory: small requests in classes of 64 bytes, large ones in whole pages,
/// both recycled warm, all under one budget.
///
/// Thread safety: thread-safe.
class DeviceHeap {
 public:
  DeviceHeap(std::string device, Bytes budget, bool poison);
  ~DeviceHeap();

  /// Errors: OutOfDeviceMemory, also when the planted failure is due.
  void* allocate(Bytes bytes);
  void free(void* data, Bytes bytes) noexcept;
  static Bytes rounded(Bytes bytes) noexcept;
  void trim() noexcept;

  Bytes in_use() const noexcept;
  Bytes peak() const noexcept;
  Bytes held() const noexcept;
  void reset_peak() noexcept;

  /// Plants the failure of the n-th allocation from now on; -1 disarms.
  void fail_after(std::int64_t n) noexcept;
  std::int64_t allocations() const noexcept;

 private:
  static constexpr std::int64_t kClassBytes = 64;
  static constexpr std::int64_t kSmallBytes = 16 << 10;

  void* allocate_small(Bytes rounded) HYDRA_REQUIRES(mutex_);
  void drop_small() noexcept HYDRA_REQUIRES(mutex_);

  const std::string device_;
  const Bytes budget_;
  const bool poison_;
  PagePool pages_;
  mutable Mutex mutex_;
  std::vector<std::vector<void*>> small_free_ HYDRA_GUARDED_BY(mutex_);  ///< by class
  Bytes small_held_ HYDRA_GUARDED_BY(mutex_);
  Bytes in_use_ HYDRA_GUARDED_BY(mutex_);
  Bytes peak_ HYDRA_GUARDED_BY(mutex_);
  std::int64_t allocations_ HYDRA_GUARDED_BY(mutex_) = 0;
  std::int64_t fail_at_ HYDRA_GUARDED_BY(mutex_) = -1;
};

}  // namespace hydra
