#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hydra {

/// A number of bytes. Signed, so that a difference that goes wrong is seen as negative.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::int64_t count) : count_(count) {}

  constexpr std::int64_t count() const { return count_; }
  constexpr std::size_t size() const { return static_cast<std::size_t>(count_); }

  constexpr Bytes& operator+=(Bytes other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    count_ -= other.count_;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  friend constexpr Bytes operator*(Bytes a, std::int64_t n) { return Bytes(a.count_ * n); }
  friend constexpr Bytes operator*(std::int64_t n, Bytes a) { return Bytes(a.count_ * n); }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

  /// Returns the smallest multiple of `alignment` (a power of two) that is not below this.
  constexpr Bytes rounded_up(std::int64_t alignment) const {
    return Bytes((count_ + alignment - 1) & ~(alignment - 1));
  }

 private:
  std::int64_t count_ = 0;
};

namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes(static_cast<std::int64_t>(n)); }
constexpr Bytes operator""_KiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 10);
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 20);
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 30);
}
}  // namespace literals

/// Reads "64MiB", "1.5 GiB", "512", "2GB" (decimal units too, case-insensitive).
/// Errors: InvalidArgument for anything else, negative or beyond 2^62.
Bytes parse_bytes(std::string_view text);

/// Writes with two significant decimals in the largest fitting binary unit, for example "1.50 GiB".
std::string to_string(Bytes bytes);

}  // namespace hydra
