#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hydra::detail {

/// What GPT-2's splitting rule asks of a code point.
enum class CharacterClass : std::uint8_t {
  kOther,   ///< none of the following; unassigned code points and bytes that are no UTF-8 too
  kLetter,  ///< general category L
  kNumber,  ///< general category N
  kSpace,   ///< property White_Space
};

inline constexpr std::size_t kUnicodeBlocks = 1608;
inline constexpr std::size_t kUnicodeDistinctBlocks = 208;
inline constexpr std::size_t kUnicodeBlockWords = 4;

/// Which of the distinct blocks each block of 128 code points is; no class lies beyond the last.
extern const std::array<std::uint8_t, kUnicodeBlocks> kUnicodeIndex;
/// Two bits per code point.
extern const std::array<std::uint64_t, kUnicodeDistinctBlocks * kUnicodeBlockWords> kUnicodeClasses;

/// Returns the class of any number; those that are no code point are kOther.
inline CharacterClass character_class(std::uint32_t code_point) {
  const std::size_t block = code_point / 128;
  if (block >= kUnicodeBlocks) return CharacterClass::kOther;
  const std::size_t word = kUnicodeIndex[block] * kUnicodeBlockWords + code_point % 128 / 32;
  return static_cast<CharacterClass>(kUnicodeClasses[word] >> (code_point % 32 * 2) & 3U);
}

/// A character as the splitting rule sees it.
struct Character {
  CharacterClass kind;
  std::uint8_t bytes;  ///< 1 to 4
};

/// Returns the character at `at`, which is below the text's size. A byte that begins no well-formed
/// UTF-8 sequence is a character of its own, of class kOther.
Character character_at(std::string_view text, std::size_t at);

/// Returns whether every sequence is well-formed: no surrogates, nothing overlong, none cut off.
bool is_utf8(std::string_view text);

}  // namespace hydra::detail
