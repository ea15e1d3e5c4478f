#include "data/json_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "data/shown_text.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

using Json = nlohmann::json;

constexpr std::uintmax_t kLargestFile = std::uintmax_t{1} << 30;
constexpr int kDeepest = 64;

/// Refuses keys that an object has twice: a parser that keeps one of them hides the other.
class StrictKeys {
 public:
  explicit StrictKeys(const std::string& path) : path_(path) {}

  void see(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kDeepest) {
      throw DataError(path_ + " is nested deeper than " + std::to_string(kDeepest) + " levels");
    }
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event != Json::parse_event_t::key) return;
    const auto& key = parsed.get_ref<const std::string&>();
    if (!open_.back().insert(key).second) {
      throw DataError(path_ + " has the key " + in_quotes(key) + " twice in one object");
    }
  }

 private:
  const std::string& path_;
  std::vector<std::unordered_set<std::string>> open_;
};

}  // namespace

std::string read_small_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw DataError("the file " + path + " does not exist");
  }
  if (status.type() == std::filesystem::file_type::none) {
    throw DataError("the file " + path + " cannot be read: " + error.message());
  }
  if (!std::filesystem::is_regular_file(status)) throw DataError(path + " is no regular file");
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) throw DataError("the file " + path + " cannot be read: " + error.message());
  if (bytes > kLargestFile) {
    throw DataError("the file " + path + " has " + std::to_string(bytes) +
                    " bytes, at most 1 GiB is read of such a file");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!file) {
    throw DataError("the file " + path + " cannot be read: " + system_message(errno));
  }
  return text;
}

Json read_json_file(const std::string& path) {
  const std::string text = read_small_file(path);
  // The parser takes a zero byte for the end of its input, and would not see what follows.
  const std::size_t zero = text.find('\0');
  if (zero != text.npos) {
    throw DataError(path + " is not valid JSON: byte " + std::to_string(zero) + " is zero");
  }
  StrictKeys keys(path);
  try {
    return Json::parse(text, [&keys](int depth, Json::parse_event_t event, Json& parsed) {
      keys.see(depth, event, parsed);
      return true;
    });
  } catch (const Json::exception& error) {
    throw DataError(path + " is not valid JSON: " + printable(error.what(), 400));
  }
}

}  // namespace hydra
