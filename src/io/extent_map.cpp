#include "hydra/io/extent_map.h"

#include <iterator>
#include <string>

#include "hydra/core/check.h"

namespace hydra {

ExtentMap::ExtentMap(Bytes capacity)
    : capacity_(capacity.count() / kExtentAlignment * kExtentAlignment) {
  if (capacity_ > Bytes(0)) insert({0, capacity_.count()});
}

void ExtentMap::insert(Extent extent) {
  by_offset_.emplace(extent.offset, extent.size);
  by_size_.emplace(extent.size, extent.offset);
}

void ExtentMap::erase(std::map<std::int64_t, std::int64_t>::iterator entry) {
  by_size_.erase({entry->second, entry->first});
  by_offset_.erase(entry);
}

std::optional<Extent> ExtentMap::allocate(Bytes bytes) {
  const std::int64_t size = bytes.rounded_up(kExtentAlignment).count();
  if (size <= 0) return Extent{};
  const auto found = by_size_.lower_bound({size, 0});
  if (found == by_size_.end()) return std::nullopt;
  const Extent run{found->second, found->first};
  erase(by_offset_.find(run.offset));
  if (run.size > size) insert({run.offset + size, run.size - size});
  used_ += Bytes(size);
  return Extent{run.offset, size};
}

void ExtentMap::free(Extent extent) {
  if (extent.size == 0) return;
  const auto after = by_offset_.lower_bound(extent.offset);
  const bool overlaps_after =
      after != by_offset_.end() && after->first < extent.offset + extent.size;
  const auto before = after == by_offset_.begin() ? by_offset_.end() : std::prev(after);
  const bool overlaps_before =
      before != by_offset_.end() && before->first + before->second > extent.offset;
  HYDRA_CHECK(!overlaps_after && !overlaps_before && extent.offset >= 0 &&
                  extent.offset + extent.size <= capacity_.count(),
              "extent " + std::to_string(extent.offset) + " + " + std::to_string(extent.size) +
                  " was not handed out");
  used_ -= Bytes(extent.size);
  Extent joined = extent;
  if (after != by_offset_.end() && after->first == extent.offset + extent.size) {
    joined.size += after->second;
    erase(after);
  }
  if (before != by_offset_.end() && before->first + before->second == extent.offset) {
    joined.offset = before->first;
    joined.size += before->second;
    erase(before);
  }
  insert(joined);
}

Bytes ExtentMap::largest_free() const noexcept {
  return by_size_.empty() ? Bytes(0) : Bytes(by_size_.rbegin()->first);
}

}  // namespace hydra
