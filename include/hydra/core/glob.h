#pragma once

#include <string_view>

namespace hydra {

/// Returns true when the whole text matches the pattern: * stands for any run of characters (dots
/// included), ? for one; everything else for itself.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace hydra
