#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "hydra/core/bytes.h"

namespace hydra {

/// Transfers to a drive begin and end at multiples of this.
inline constexpr std::int64_t kExtentAlignment = 4096;

/// A run of bytes of a drive. Units: bytes, multiples of kExtentAlignment.
struct Extent {
  std::int64_t offset = 0;
  std::int64_t size = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

/// Says which bytes of a drive are free: hands out the smallest free run that is large enough, and
/// joins what comes back with its free neighbours, so that used + free is always the capacity.
///
/// Thread safety: thread-compatible.
class ExtentMap {
 public:
  explicit ExtentMap(Bytes capacity);  ///< rounded down to kExtentAlignment

  /// Returns a run of at least `bytes` (rounded up), or nothing when no free run is large enough.
  std::optional<Extent> allocate(Bytes bytes);
  /// Takes back a run that `allocate` gave. Errors: InternalError when any of it is free already.
  void free(Extent extent);

  Bytes capacity() const noexcept { return capacity_; }
  Bytes used() const noexcept { return used_; }
  Bytes largest_free() const noexcept;

 private:
  void insert(Extent extent);
  void erase(std::map<std::int64_t, std::int64_t>::iterator entry);

  Bytes capacity_;
  Bytes used_;
  std::map<std::int64_t, std::int64_t> by_offset_;           // free runs: offset to size
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;  // the same: size, offset
};

}  // namespace hydra
