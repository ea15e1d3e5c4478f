#pragma once

#include <cstddef>
#include <string>

namespace hydra {

/// Returns how many code points a UTF-8 text has.
inline std::size_t character_count(const std::string& text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

/// Returns the text with a space for every control character.
inline std::string one_line(std::string text) {
  for (char& byte : text) {
    if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F) byte = ' ';
  }
  return text;
}

/// Returns the first `columns` code points; a sequence is never cut within.
inline std::string cut(const std::string& text, std::size_t columns) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
    if (starts && ++count > columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace hydra
