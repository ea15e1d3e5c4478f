#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "hydra/core/bytes.h"
#include "hydra/memory/tier_budget.h"

namespace hydra {

class PagePool;

/// Page-aligned bytes of the host tier, with the reservation that pays for them.
///
/// Move-only. Lifetime: may outlive the arena. The content is undefined at first.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer() { release(); }

  std::byte* data() const noexcept { return data_; }
  Bytes size() const noexcept { return size_; }
  std::span<std::byte> span() const noexcept { return {data_, size_.size()}; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  /// Gives the memory and the reservation back now.
  void release() noexcept;

 private:
  friend class HostArena;
  std::shared_ptr<PagePool> pool_;
  std::byte* data_ = nullptr;
  Bytes size_;
  Reservation reservation_;
};

/// Hands out host-tier memory against reservations, recycling warm pages.
///
/// Pages are not pinned here; a CUDA build registers them.
/// Thread safety: thread-safe.
class HostArena {
 public:
  /// `capacity` bounds what the arena holds, warm pages included.
  explicit HostArena(Bytes capacity);

  /// Returns a buffer of `reservation.bytes()` bytes (rounded up to pages inside).
  /// Errors: OutOfHostMemory when the system refuses.
  HostBuffer allocate(Reservation reservation);

 private:
  std::shared_ptr<PagePool> pool_;
};

}  // namespace hydra
