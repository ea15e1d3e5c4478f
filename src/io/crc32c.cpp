#include "hydra/io/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace hydra {
namespace {

constexpr std::uint32_t kReversedPolynomial = 0x82F63B78U;

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1U) != 0 ? kReversedPolynomial : 0U);
    }
    table[byte] = value;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_by_instruction(
    std::span<const std::byte> data, std::uint32_t seed) noexcept {
  std::uint64_t value = ~seed;
  const std::byte* at = data.data();
  std::size_t left = data.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    value = _mm_crc32_u64(value, word);
  }
  auto rest = static_cast<std::uint32_t>(value);
  for (; left > 0; --left, ++at) {
    rest = _mm_crc32_u8(rest, static_cast<std::uint8_t>(*at));
  }
  return ~rest;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> data, std::uint32_t seed) noexcept {
  std::uint32_t value = ~seed;
  for (const std::byte byte : data) {
    value = (value >> 8) ^ kTable[(value ^ static_cast<std::uint32_t>(byte)) & 0xFFU];
  }
  return ~value;
}

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t seed) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_by_instruction(data, seed);
#endif
  return crc32c_by_table(data, seed);
}

}  // namespace hydra
