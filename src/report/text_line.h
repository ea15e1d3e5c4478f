#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hydra {

/// Returns how many columns of a terminal a text takes: 0 for marks that go onto the character
/// before, 2 for wide characters (most of East Asia's, emoji), 1 for every other and for each byte
/// that is not UTF-8.
/// Source: The Unicode Standard, version 15.0, 2022, general categories Mn, Me and Cf, and annex 11
/// (East Asian Width); ranges rounded to whole blocks where nothing else is in them.
std::size_t column_count(std::string_view text);

/// Returns the text with a space for every control character, and U+FFFD for each byte that is not
/// UTF-8: what a terminal could take for a command.
std::string one_line(std::string_view text);

/// Returns as many characters as `columns` columns hold; a sequence is never cut within.
std::string cut(std::string_view text, std::size_t columns);

}  // namespace hydra
