#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "hydra/core/bytes.h"
#include "hydra/memory/tier_budget.h"

namespace hydra {

class HostPages;

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
  std::shared_ptr<HostPages> pages_;  // shared with the arena, which it may outlive
  std::byte* data_ = nullptr;
  Bytes size_;
  Reservation reservation_;
};

/// Hands out host-tier memory against reservations, recycling warm pages.
///
/// What it holds, buffers and warm pages, stays within its capacity, but for the ends of the
/// buffers' last pages: less than a page per buffer that is alive. Warm pages go before that.
///
/// Pages are not pinned here; a CUDA build registers them.
/// Thread safety: thread-safe.
class HostArena {
 public:
  /// `capacity` bounds the bytes of all buffers together.
  explicit HostArena(Bytes capacity);

  /// Returns a buffer of `reservation.bytes()` bytes (rounded up to pages inside).
  /// Errors: OutOfHostMemory beyond the capacity, SystemError when the system refuses.
  HostBuffer allocate(Reservation reservation);

  /// Returns the bytes of all pages that are held, warm ones included.
  Bytes held() const;

 private:
  std::shared_ptr<HostPages> pages_;
};

}  // namespace hydra
