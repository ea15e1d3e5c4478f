#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace hydra {

/// Computes a SHA-256 digest piece by piece.
/// Source: NIST, Secure Hash Standard, FIPS 180-4, 2015, section 6.2.
/// Thread safety: thread-compatible.
class Sha256 {
 public:
  Sha256();

  void update(std::span<const std::byte> data);
  /// Returns the digest of everything so far in lower-case hexadecimal; nothing may follow.
  std::string hex_digest();

 private:
  void compress(const std::byte* block);

  std::array<std::uint32_t, 8> state_;
  std::array<std::byte, 64> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace hydra
