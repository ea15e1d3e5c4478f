#pragma once

#include <string>
#include <string_view>

namespace hydra {

/// Writes a whole file under a temporary name, then renames it.
/// Errors: SystemError with path and cause.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace hydra
