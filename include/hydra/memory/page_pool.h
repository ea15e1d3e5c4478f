#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "hydra/core/bytes.h"

namespace hydra {

/// Anonymous memory by whole pages, recycled warm, never fragmented.
///
/// A page that the kernel has just given costs several times the copy that fills it, so freed pages
/// are kept and handed out again: from one free range when one is large enough, else stitched
/// together from several by moving their page-table entries (`mremap`), which copies nothing. What
/// is held, used or free, never exceeds the capacity; when a request needs fresh pages, free ones
/// are given back to the kernel first as far as the capacity demands it. So a request fails only
/// when used bytes + request > capacity.
///
/// Pages that something outside knows by their place (registered with a device's driver, with a
/// ring) are *pinned*: such a pool never moves any, and serves what no free range holds with fresh
/// pages alone.
///
/// Thread safety: thread-safe.
class PagePool {
 public:
  struct Stats {
    Bytes capacity;
    Bytes used;       ///< handed out
    Bytes free_warm;  ///< held for reuse
    Bytes peak_used;
    std::int64_t fresh_pages = 0;      ///< pages ever taken from the kernel
    std::int64_t stitched_ranges = 0;  ///< requests served by moving pages
    std::int64_t moved_pieces = 0;     ///< and how many pieces they were made of
  };

  static constexpr std::int64_t kPageBytes = 4096;

  struct Options {
    /// Pages stay where they are while they are held. Default: they are moved.
    bool pinned = false;
    /// No free page is held while used and free pages together exceed this; nothing: the capacity.
    std::optional<Bytes> most_held{};
  };

  explicit PagePool(Bytes capacity);
  PagePool(Bytes capacity, Options options);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// Returns `bytes` rounded up to pages, or nullptr when the capacity does not allow it.
  /// Errors: SystemError when the kernel refuses; nothing is lost, what was free is still held or
  /// has been given back to the kernel.
  std::byte* allocate(Bytes bytes);
  /// Takes back a range from allocate, with the same size.
  void free(std::byte* data, Bytes bytes) noexcept;
  /// Gives all free pages back to the kernel.
  void trim() noexcept;
  /// Gives back free pages until at most `most` are held free.
  void trim_to(Bytes most) noexcept;
  Stats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
