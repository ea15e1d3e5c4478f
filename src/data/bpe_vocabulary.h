#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe_definition.h"

namespace hydra::detail {

/// Collects a definition from the parts of whichever files hold it, checking each.
/// Errors: DataError; `where` in each call names the file and place for its message.
class BpeVocabulary {
 public:
  /// Takes an object of token to id.
  BpeVocabulary(const nlohmann::json& tokens, const std::string& where);

  void add_merge(std::string_view left, std::string_view right, const std::string& where);
  /// Makes a token special; one that the vocabulary lacks is added with this id.
  void add_special(const std::string& content, std::int64_t id, const std::string& where);
  /// Returns the id of a token as it is spelled in the file, or -1.
  std::int64_t find(const std::string& token) const;

  /// Checks what only the whole can show. Nothing may follow.
  BpeDefinition finish(const std::string& where);

 private:
  void place(std::int64_t id, std::string bytes, const std::string& where);
  std::int32_t merge_part(const std::string& part, const std::string& where) const;

  std::unordered_map<std::string, std::int32_t> ids_;
  std::unordered_map<std::uint64_t, std::size_t> merged_;  ///< pair to the number of its merge
  BpeDefinition definition_;
  std::size_t highest_allowed_;
};

}  // namespace hydra::detail
