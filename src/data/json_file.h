#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace hydra {

/// Reads a whole file of at most 1 GiB.
/// Errors: DataError with the path and what is wrong: missing, no regular file, unreadable, larger.
std::string read_small_file(const std::string& path);

/// Reads a JSON file, strictly: UTF-8, no key twice in an object, at most 64 levels deep.
/// Errors: DataError with the path and the line and column, or the key.
nlohmann::json read_json_file(const std::string& path);

}  // namespace hydra
