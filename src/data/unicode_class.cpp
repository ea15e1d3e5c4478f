#include "data/unicode_class.h"

namespace hydra::detail {
namespace {

struct Sequence {
  std::uint32_t code_point;
  std::uint8_t bytes;  ///< 0 when ill-formed
};

constexpr Sequence kIllFormed{0, 0};

std::uint32_t byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

/// Source: The Unicode Standard 16.0, section 3.9, table 3-7 (well-formed UTF-8).
Sequence sequence_at(std::string_view text, std::size_t at) {
  const std::uint32_t first = byte_at(text, at);
  if (first < 0x80) return {first, 1};
  if (first < 0xC2 || first > 0xF4) return kIllFormed;
  const std::uint8_t bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() - at < bytes) return kIllFormed;
  std::uint32_t code_point = first & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const std::uint32_t next = byte_at(text, at + i);
    if ((next & 0xC0U) != 0x80U) return kIllFormed;
    code_point = code_point << 6 | (next & 0x3FU);
  }
  const bool overlong = (bytes == 3 && code_point < 0x800) || (bytes == 4 && code_point < 0x10000);
  const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
  if (overlong || surrogate || code_point > 0x10FFFF) return kIllFormed;
  return {code_point, bytes};
}

}  // namespace

Character character_at(std::string_view text, std::size_t at) {
  const Sequence sequence = sequence_at(text, at);
  if (sequence.bytes == 0) return {CharacterClass::kOther, 1};
  return {character_class(sequence.code_point), sequence.bytes};
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::uint8_t bytes = sequence_at(text, at).bytes;
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

}  // namespace hydra::detail
