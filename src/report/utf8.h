#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hydra {

/// Returns the bytes of the character that begins `text`, which is not empty; 0 when that is not
/// well-formed UTF-8. Source: The Unicode Standard, version 15.0, 2022, table 3-7.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4 || !continues(1)) return 0;
  if (first < 0xE0) return 2;
  if (!continues(2)) return 0;
  if (first < 0xF0) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return overlong || surrogate ? 0 : 3;
  }
  const bool overlong = first == 0xF0 && byte(1) < 0x90;
  const bool beyond = first == 0xF4 && byte(1) > 0x8F;
  return overlong || beyond || !continues(3) ? 0 : 4;
}

/// Returns the text with U+FFFD for each byte that is not part of a well-formed character.
inline std::string valid_utf8(std::string_view text) {
  std::string valid;
  for (; !text.empty();) {
    const std::size_t length = utf8_length(text);
    valid += length == 0 ? std::string_view("\uFFFD") : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return valid;
}

}  // namespace hydra
