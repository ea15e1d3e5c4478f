#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace hydra {

/// An integer that is not to be mixed up with another kind of integer.
template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(std::int64_t value) : value_(value) {}
  constexpr std::int64_t value() const { return value_; }
  constexpr bool valid() const { return value_ >= 0; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  std::int64_t value_ = -1;
};

/// Numbers jobs in the order of submission within one runtime.
using JobId = Id<struct JobTag>;
/// Numbers the devices of one runtime, from 0.
using DeviceId = Id<struct DeviceTag>;
/// Numbers the parts that one shard store keeps; never reused.
using PartId = Id<struct PartTag>;

}  // namespace hydra

namespace std {
template <typename Tag>
struct hash<hydra::Id<Tag>> {
  size_t operator()(hydra::Id<Tag> id) const noexcept { return hash<int64_t>{}(id.value()); }
};
}  // namespace std
