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

// Where the kernel cannot cut a mapping (it has a limit of them), the pages at least are given back
// and the addresses stay taken.
void unmap(std::byte* data, std::int64_t bytes) {
  if (bytes <= 0) return;
  if (munmap(data, static_cast<std::size_t>(bytes)) == 0) return;
  madvise(data, static_cast<std::size_t>(bytes), MADV_DONTNEED);
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
  return data + before;
}

/// The kernel's mappings that lie in a pool's pages: mremap takes pages of one at a time.
///
/// The kernel may join two of them, never cut one otherwise than told here.
class Mappings {
 public:
  void add(std::byte* data, std::int64_t bytes) { sizes_.emplace(data, bytes); }

  /// Forgets a range, which may hold several mappings and parts of some.
  void remove(std::byte* data, std::int64_t bytes) {
    std::byte* const end = data + bytes;
    auto next = sizes_.upper_bound(data);
    if (next != sizes_.begin()) --next;
    while (next != sizes_.end() && next->first < end) {
      const auto [begin, size] = *next;
      if (begin + size <= data) {
        ++next;
        continue;
      }
      next = sizes_.erase(next);
      if (begin < data) sizes_.emplace(begin, data - begin);
      if (begin + size > end) sizes_.emplace(end, begin + size - end);
    }
  }

  /// Returns how many bytes from `data` on are of one mapping.
  std::int64_t bytes_from(std::byte* data) const {
    const auto after = sizes_.upper_bound(data);
    HYDRA_CHECK(after != sizes_.begin(), "a page that is in no mapping");
    const auto& [begin, size] = *std::prev(after);
    return begin + size - data;
  }

  std::size_t count() const { return sizes_.size(); }

 private:
  std::map<std::byte*, std::int64_t> sizes_;
};

}  // namespace

struct PagePool::Impl {
  using Range = std::pair<std::byte* const, std::int64_t>;

  Impl(Bytes given, const Options& options)
      : capacity(given.count()),
        most_held(std::min(given, options.most_held.value_or(given)).count()),
        pinned(options.pinned) {}

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
    mappings.remove(data, bytes);
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

  /// Gives back free pages until `more` fresh ones may be held beside the rest.
  void make_room(std::int64_t more) { give_back(used + free_bytes + more - most_held); }

  std::byte* map_fresh(std::int64_t bytes) {
    make_room(bytes);
    std::byte* data = map_aligned(bytes, PROT_READ | PROT_WRITE);
    ask_for_huge_pages(data, bytes);
    mappings.add(data, bytes);
    fresh_pages += bytes / kPageBytes;
    return data;
  }

  /// Builds a range out of moved free pages, and fresh ones for the rest; null when the kernel
  /// refuses, and what had been moved is free again.
  std::byte* stitch(std::int64_t bytes) {
    std::byte* target = map_aligned(bytes, PROT_NONE);
    std::int64_t filled = 0;
    while (filled < bytes && !by_size.empty() && by_size.rbegin()->first >= kSmallestPiece) {
      const auto [size, data] = *by_size.rbegin();
      const std::int64_t piece = std::min({size, bytes - filled, mappings.bytes_from(data)});
      if (!move(data, piece, target + filled)) {
        // It may have unmapped its target first, and another thread may have mapped something
        // there since: these addresses are nobody's that we know, and stay as they are.
        abandon(target, filled, piece, bytes);
        return nullptr;
      }
      remove_free(data, size);
      if (size > piece) add_free(data + piece, size - piece);
      free_bytes -= piece;
      filled += piece;
      ++moved_pieces;
    }
    const std::int64_t fresh = bytes - filled;
    if (fresh > 0) {
      make_room(bytes);  // what has been moved counts as neither used nor free
      if (mprotect(target + filled, static_cast<std::size_t>(fresh), PROT_READ | PROT_WRITE) != 0) {
        abandon(target, filled, 0, bytes);
        return nullptr;
      }
      ask_for_huge_pages(target + filled, fresh);
      mappings.add(target + filled, fresh);
      fresh_pages += fresh / kPageBytes;
    }
    if (filled > 0) ++stitched;
    return target;
  }

  bool move(std::byte* data, std::int64_t bytes, std::byte* target) {
    void* moved = mremap(data, static_cast<std::size_t>(bytes), static_cast<std::size_t>(bytes),
                         MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (moved == MAP_FAILED) return false;
    mappings.remove(data, bytes);
    mappings.add(target, bytes);
    return true;
  }

  /// Takes a range apart that could not be completed: `filled` bytes of moved pages are free again,
  /// the next `unknown` bytes are left alone.
  void abandon(std::byte* target, std::int64_t filled, std::int64_t unknown, std::int64_t bytes) {
    if (filled > 0) add_free(target, filled);
    free_bytes += filled;
    unmap(target + filled + unknown, bytes - filled - unknown);
  }

  /// A range that no free one holds.
  std::byte* build(std::int64_t bytes) {
    const bool pieces = !by_size.empty() && by_size.rbegin()->first >= kSmallestPiece;
    if (!pinned && pieces) {
      if (std::byte* data = stitch(bytes)) return data;
    }
    return map_fresh(bytes);
  }

  void ask_for_huge_pages(std::byte* data, std::int64_t bytes) {
    if (bytes >= kHugePageBytes) madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  }

  const std::int64_t capacity;
  const std::int64_t most_held;
  const bool pinned;
  mutable Mutex mutex;
  std::map<std::byte*, std::int64_t> ranges;              // free, by address, coalesced
  std::set<std::pair<std::int64_t, std::byte*>> by_size;  // the same, by size
  Mappings mappings;
  std::int64_t used = 0;
  std::int64_t free_bytes = 0;
  std::int64_t peak = 0;
  std::int64_t fresh_pages = 0;
  std::int64_t stitched = 0;
  std::int64_t moved_pieces = 0;
};

PagePool::PagePool(Bytes capacity) : PagePool(capacity, Options{}) {}

PagePool::PagePool(Bytes capacity, Options options)
    : impl_(std::make_unique<Impl>(capacity, options)) {
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
  if (data == nullptr) data = impl_->build(wanted);
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
  impl_->make_room(0);
  if (impl_->mappings.count() > kMostMappings) impl_->give_back(impl_->free_bytes);
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
  stats.moved_pieces = impl_->moved_pieces;
  return stats;
}

}  // namespace hydra
