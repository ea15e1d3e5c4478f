#include "data/byte_alphabet.h"

#include <array>

namespace hydra::detail {
namespace {

constexpr unsigned kMoved = 0x100;    // first character of those that are not printable
constexpr unsigned kMovedCount = 68;  // 0x00-0x20, 0x7F-0xA0, 0xAD

constexpr bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

struct Alphabet {
  std::array<std::array<char, 2>, 256> text{};  ///< UTF-8
  std::array<unsigned char, 256> length{};
  std::array<unsigned char, kMovedCount> moved{};  ///< byte of U+0100 + i
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  unsigned moved = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned code_point = byte;
    if (!is_printable(byte)) {
      alphabet.moved[moved] = static_cast<unsigned char>(byte);
      code_point = kMoved + moved++;
    }
    if (code_point < 0x80) {
      alphabet.text[byte] = {static_cast<char>(code_point), 0};
      alphabet.length[byte] = 1;
    } else {
      alphabet.text[byte] = {static_cast<char>(0xC0 | code_point >> 6),
                             static_cast<char>(0x80 | (code_point & 0x3F))};
      alphabet.length[byte] = 2;
    }
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

/// Returns the byte of a code point below 0x800, or -1.
int byte_of(unsigned code_point) {
  if (code_point < 0x100) return is_printable(code_point) ? static_cast<int>(code_point) : -1;
  return code_point < kMoved + kMovedCount ? kAlphabet.moved[code_point - kMoved] : -1;
}

}  // namespace

std::string_view printable_of(unsigned char byte) {
  return {kAlphabet.text[byte].data(), kAlphabet.length[byte]};
}

std::optional<std::string> bytes_of(std::string_view printable) {
  std::string bytes;
  for (std::size_t i = 0; i < printable.size(); ++i) {
    unsigned code_point = static_cast<unsigned char>(printable[i]);
    if (code_point >= 0x80) {
      // Longer sequences lie beyond the alphabet.
      if ((code_point & 0xE0U) != 0xC0U || i + 1 == printable.size()) return std::nullopt;
      code_point = (code_point & 0x1FU) << 6 | (static_cast<unsigned char>(printable[++i]) & 0x3FU);
    }
    const int byte = byte_of(code_point);
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace hydra::detail
