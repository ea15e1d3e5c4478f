#include "hydra/memory/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <vector>

#include "hydra/core/check.h"
#include "hydra/core/error.h"
#include "hydra/core/mutex.h"

namespace hydra {
namespace {

constexpr std::int64_t kHugePageBytes = 2 << 20;
// Moving a smaller piece costs about what fresh pages cost.
constexpr std::int64_t kSmallestPiece = 64 << 10;
// The kernel allows 65530 mappings per process by default; stay far below.
constexpr std::size_t kMostMappings = 8000;

std::byte* map_pages(std::int64_t bytes, int protection) {
  void* data = mmap(nullptr, static_cast<std::size_t>(bytes), protection,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw SystemError("the system refuses " + to_string(Bytes(bytes)) +
                      " of memory: " + system_message(errno));
  }
  return static_cast<std::byte*>(data);
}

void unmap(std::byte* data, std::int64_t bytes) {
  if (bytes > 0) munmap(data, static_cast<std::size_t>(bytes));
}

/// Maps an address range that starts at a huge page's border when it can hold one.
std::byte* map_aligned(std::int64_t bytes, int protection) {
  if (bytes < kHugePageBytes) return map_pages(bytes, protection);
  std::byte* data = map_pages(bytes + kHugePageBytes, protection);
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto border = (address + kHugePageBytes - 1) & ~std::uintptr_t{kHugePageBytes - 1};
  const auto before = static_cast<std::int64_t>(border - address);
  unmap(data, before);
  unmap(data + before + bytes, kHugePageBytes - before);
  std::byte* aligned = data + before;
  return aligned;
}

}  // namespace

struct PagePool::Impl {
  using Range = std::pair<std::byte* const, std::int64_t>;

  explicit Impl(Bytes given) : capacity(given.count()) {}

  void add_free(std::byte* data, std::int64_t bytes) {
    auto next = ranges.lower_bound(data);
    if (next != ranges.end() && data + bytes == next->first) {
      bytes += next->second;
      by_size.erase({next->second, next->first});
      next = ranges.erase(next);
    }
    if (next != ranges.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == data) {
        data = previous->first;
        bytes += previous->second;
        by_size.erase({previous->second, previous->first});
        ranges.erase(previous);
      }
    }
    ranges.emplace(data, bytes);
    by_size.emplace(bytes, data);
  }

  void remove_free(std::byte* data, std::int64_t bytes) {
    ranges.erase(data);
    by_size.erase({bytes, data});
  }

  /// Takes the front of the best-fitting free range; null when none is large enough.
  std::byte* take_fitting(std::int64_t bytes) {
    const auto found = by_size.lower_bound({bytes, nullptr});
    if (found == by_size.end()) return nullptr;
    const auto [size, data] = *found;
    remove_free(data, size);
    if (size > bytes) add_free(data + bytes, size - bytes);
    free_bytes -= bytes;
    return data;
  }

  void unmap_free(std::byte* data, std::int64_t bytes) {
    unmap(data, bytes);
    free_bytes -= bytes;
    borders.erase(borders.lower_bound(data), borders.lower_bound(data + bytes));
  }

  /// Gives back whole free ranges, smallest first, then part of the last one.
  void give_back(std::int64_t bytes) {
    bytes = Bytes(bytes).rounded_up(kPageBytes).count();  // budgets need not be whole pages
    while (bytes > 0 && !by_size.empty()) {
      const auto [size, data] = *by_size.begin();
      remove_free(data, size);
      const std::int64_t given = std::min(size, bytes);
      unmap_free(data + size - given, given);
      if (size > given) add_free(data, size - given);
      bytes -= given;
    }
  }

  /// Builds a range out of moved free pages, and fresh ones for the rest.
  std::byte* stitch(std::int64_t bytes) {
    std::byte* target = map_aligned(bytes, PROT_NONE);
    std::int64_t filled = 0;
    while (filled < bytes && !by_size.empty() && by_size.rbegin()->first >= kSmallestPiece) {
      const auto [size, data] = *by_size.rbegin();
      remove_free(data, size);
      const std::int64_t moved = move_piece(data, size, target + filled, bytes - filled);
      if (moved == 0) {  // the kernel would not: its pages are given up instead
        unmap_free(data, size);
        continue;
      }
      if (size > moved) add_free(data + moved, size - moved);
      filled += moved;
      ++stitched_pieces;
    }
    const std::int64_t fresh = bytes - filled;
    if (fresh > 0) {
      give_back(used + free_bytes + bytes - capacity);
      borders.insert(target + filled);
      make_usable(target + filled, fresh);
      fresh_pages += fresh / kPageBytes;
    }
    return target;
  }

  /// Moves the front of a free range, up to its first mapping border; returns how much.
  std::int64_t move_piece(std::byte* data, std::int64_t size, std::byte* target,
                          std::int64_t wanted) {
    std::int64_t piece = std::min(size, wanted);
    const auto border = borders.upper_bound(data);
    if (border != borders.end()) {
      piece = std::min<std::int64_t>(piece, *border - data);
    }
    void* moved = mremap(data, static_cast<std::size_t>(piece), static_cast<std::size_t>(piece),
                         MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (moved == MAP_FAILED) return 0;
    borders.erase(data);
    borders.insert(target);
    if (piece < size) borders.insert(data + piece);
    free_bytes -= piece;
    return piece;
  }

  void make_usable(std::byte* data, std::int64_t bytes) {
    if (mprotect(data, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE) != 0) {
      throw SystemError("the system refuses " + to_string(Bytes(bytes)) +
                        " of memory: " + system_message(errno));
    }
    if (bytes >= kHugePageBytes) madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  }

  const std::int64_t capacity;
  mutable Mutex mutex;
  std::map<std::byte*, std::int64_t> ranges;              // free, by address, coalesced
  std::set<std::pair<std::int64_t, std::byte*>> by_size;  // the same, by size
  std::set<std::byte*> borders;                           // where the kernel's mappings may end
  std::int64_t used = 0;
  std::int64_t free_bytes = 0;
  std::int64_t peak = 0;
  std::int64_t fresh_pages = 0;
  std::int64_t stitched = 0;
  std::int64_t stitched_pieces = 0;
};

PagePool::PagePool(Bytes capacity) : impl_(std::make_unique<Impl>(capacity)) {
  if (capacity < Bytes(0)) {
    throw InvalidArgument("a page pool's capacity is negative: " + to_string(capacity));
  }
}

PagePool::~PagePool() { trim(); }

std::byte* PagePool::allocate(Bytes bytes) {
  if (bytes.count() > impl_->capacity) return nullptr;  // so that no sum below overflows
  const std::int64_t wanted = std::max(bytes, Bytes(1)).rounded_up(kPageBytes).count();
  MutexLock lock(impl_->mutex);
  if (impl_->used + wanted > impl_->capacity) return nullptr;
  std::byte* data = impl_->take_fitting(wanted);
  if (data == nullptr) {
    const std::int64_t pieces = impl_->stitched_pieces;
    data = impl_->stitch(wanted);
    if (impl_->stitched_pieces > pieces) ++impl_->stitched;
  }
  impl_->used += wanted;
  impl_->peak = std::max(impl_->peak, impl_->used);
  return data;
}

void PagePool::free(std::byte* data, Bytes bytes) noexcept {
  const std::int64_t size = std::max(bytes, Bytes(1)).rounded_up(kPageBytes).count();
  MutexLock lock(impl_->mutex);
  impl_->add_free(data, size);
  impl_->used -= size;
  impl_->free_bytes += size;
  if (impl_->borders.size() > kMostMappings) impl_->give_back(impl_->free_bytes);
}

void PagePool::trim() noexcept { trim_to(Bytes(0)); }

void PagePool::trim_to(Bytes most) noexcept {
  MutexLock lock(impl_->mutex);
  impl_->give_back(impl_->free_bytes - most.count());
}

PagePool::Stats PagePool::stats() const {
  MutexLock lock(impl_->mutex);
  Stats stats;
  stats.capacity = Bytes(impl_->capacity);
  stats.used = Bytes(impl_->used);
  stats.free_warm = Bytes(impl_->free_bytes);
  stats.peak_used = Bytes(impl_->peak);
  stats.fresh_pages = impl_->fresh_pages;
  stats.stitched_ranges = impl_->stitched;
  return stats;
}

}  // namespace hydra
