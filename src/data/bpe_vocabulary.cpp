#include "data/bpe_vocabulary.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/byte_alphabet.h"
#include "data/shown_text.h"
#include "hydra/core/error.h"

namespace hydra::detail {
namespace {

using Json = nlohmann::json;

/// Ids index arrays: a file may leave holes, but not ask for memory that its size does not explain.
std::size_t highest_id(std::size_t tokens) { return 2 * tokens + 1024; }

}  // namespace

BpeVocabulary::BpeVocabulary(const Json& tokens, const std::string& where)
    : highest_allowed_(highest_id(tokens.size())) {
  if (!tokens.is_object() || tokens.empty()) {
    throw DataError(where + " is no JSON object of token to id");
  }
  for (const auto& [token, id] : tokens.items()) {
    const std::string place_text = where + ", token " + in_quotes(token);
    if (!id.is_number_unsigned())
      throw DataError(place_text + ": the id " + printable(id.dump()) + " is none");
    const auto number = id.get<std::uint64_t>();
    if (number > highest_allowed_) {
      throw DataError(place_text + ": the id " + std::to_string(number) +
                      " is out of proportion to " + std::to_string(tokens.size()) + " tokens");
    }
    // An entry outside the alphabet of bytes (an added token, say) stands for its own spelling.
    place(static_cast<std::int64_t>(number), bytes_of(token).value_or(token), place_text);
    ids_.emplace(token, static_cast<std::int32_t>(number));
  }
}

void BpeVocabulary::place(std::int64_t id, std::string bytes, const std::string& where) {
  if (id < 0 || static_cast<std::size_t>(id) > highest_allowed_) {
    throw DataError(where + ": the id " + std::to_string(id) + " is out of range");
  }
  auto& tokens = definition_.tokens;
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens.size()) tokens.resize(index + 1);
  if (tokens[index].has_value()) {
    throw DataError(where + ": the id " + std::to_string(id) + " is another token's too");
  }
  tokens[index] = std::move(bytes);
}

std::int64_t BpeVocabulary::find(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

std::int32_t BpeVocabulary::merge_part(const std::string& part, const std::string& where) const {
  const std::int64_t id = find(part);
  if (id < 0) throw DataError(where + ": " + in_quotes(part) + " is not in the vocabulary");
  return static_cast<std::int32_t>(id);
}

void BpeVocabulary::add_merge(std::string_view left, std::string_view right,
                              const std::string& where) {
  const std::string first(left);
  const std::string second(right);
  const BpeMerge merge{merge_part(first, where), merge_part(second, where),
                       merge_part(first + second, where)};
  const auto key =
      static_cast<std::uint64_t>(merge.left) << 32 | static_cast<std::uint32_t>(merge.right);
  const auto [other, added] = merged_.emplace(key, definition_.merges.size());
  if (!added) {
    throw DataError(where + ": the pair " + in_quotes(first + " " + second) + " is merge " +
                    std::to_string(other->second + 1) + " of the list already");
  }
  definition_.merges.push_back(merge);
}

void BpeVocabulary::add_special(const std::string& content, std::int64_t id,
                                const std::string& where) {
  if (content.empty()) throw DataError(where + ": a special token is empty");
  const std::int64_t known = find(content);
  if (known >= 0 && known != id) {
    throw DataError(where + ": " + in_quotes(content) + " has the id " + std::to_string(known) +
                    " in the vocabulary, " + std::to_string(id) + " here");
  }
  if (known < 0) place(id, content, where + ", token " + in_quotes(content));
  const auto number = static_cast<std::int32_t>(id);
  for (const SpecialToken& special : definition_.specials) {
    if (special.id == number) return;  // several files may name it
  }
  // Added tokens are spelled in plain text even when the letters are in the alphabet of bytes.
  definition_.tokens[static_cast<std::size_t>(id)] = content;
  ids_.emplace(content, number);
  definition_.specials.push_back({content, number});
}

BpeDefinition BpeVocabulary::finish(const std::string& where) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::int64_t id = find(std::string(printable_of(static_cast<unsigned char>(byte))));
    if (id < 0) {
      char text[8];
      std::snprintf(text, sizeof text, "0x%02X", byte);
      throw DataError(where + " has no token for the byte " + text +
                      ": a byte-level vocabulary has all 256, so that any text can be encoded");
    }
    definition_.byte_tokens[byte] = static_cast<std::int32_t>(id);
  }
  return std::move(definition_);
}

}  // namespace hydra::detail
