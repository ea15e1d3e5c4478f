#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hydra {

inline constexpr std::size_t kMostShown = 120;

/// Returns text from a file that strangers wrote as a message can show it: bytes that are control
/// characters or no UTF-8 as \xNN, and no more than `most` bytes of it.
std::string printable(std::string_view text, std::size_t most = kMostShown);

/// The same between double quotes.
inline std::string in_quotes(std::string_view text) { return "\"" + printable(text) + "\""; }

}  // namespace hydra
