#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hydra::detail {

/// Returns the character, in UTF-8, that stands for a byte in GPT-2's vocabulary files: printable
/// Latin-1 stands for itself, the other 68 bytes are U+0100 to U+0143 in order.
/// Source: Radford et al., 2019, bytes_to_unicode in the published encoder.py.
std::string_view printable_of(unsigned char byte);

/// Returns the bytes that a vocabulary entry stands for, or nothing when one of its characters
/// stands for no byte.
std::optional<std::string> bytes_of(std::string_view printable);

}  // namespace hydra::detail
