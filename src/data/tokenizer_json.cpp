#include <nlohmann/json.hpp>

#include "data/bpe_definition.h"
#include "data/bpe_vocabulary.h"
#include "data/json_file.h"
#include "data/shown_text.h"
#include "hydra/core/error.h"

namespace hydra::detail {
namespace {

using Json = nlohmann::json;

/// An object of the file, with the key by which messages name it.
struct Section {
  const Json& json;
  std::string path;
  std::string key;

  /// Returns the value of a key, or null: an absent setting and a null one mean the same.
  const Json& at(const char* name) const {
    static const Json kNull;
    const auto found = json.find(name);
    return found == json.end() ? kNull : *found;
  }

  Section section(const char* name) const {
    const Json& inner = at(name);
    if (!inner.is_object()) throw DataError(path + ": " + key + name + " is no JSON object");
    return {inner, path, key + name + "."};
  }

  [[noreturn]] void refuse(const char* name, const std::string& way_out) const {
    throw Unsupported(path + ": " + key + name + " is " + printable(at(name).dump()) + ": " +
                      way_out);
  }

  void require_type(const char* type) const {
    if (at("type") != type) refuse("type", std::string("only ") + type + " is read here");
  }

  /// Refuses a setting that is neither absent, null nor its neutral value.
  void require_neutral(const char* name, const Json& neutral) const {
    if (!at(name).is_null() && at(name) != neutral) {
      refuse(name, "it would give other ids than byte-level BPE, which knows " + neutral.dump());
    }
  }

  bool flag(const char* name, bool otherwise) const {
    const Json& value = at(name);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean())
      throw DataError(path + ": " + key + name + " is neither true nor false");
    return value.get<bool>();
  }
};

void check_model(const Section& model) {
  // Files of before 2020 do not name the only model that had merges.
  if (!model.at("type").is_null()) model.require_type("BPE");
  model.require_neutral("dropout", 0.0);
  model.require_neutral("continuing_subword_prefix", "");
  model.require_neutral("end_of_word_suffix", "");
  model.require_neutral("byte_fallback", false);
  model.require_neutral("ignore_merges", false);
  // unk_token and fuse_unk have no effect: every byte has a token.
}

void check_surroundings(const Section& file) {
  file.require_neutral("normalizer", nullptr);
  if (!file.at("post_processor").is_null())
    file.section("post_processor").require_type("ByteLevel");
  if (!file.at("decoder").is_null()) file.section("decoder").require_type("ByteLevel");
}

/// Returns whether text gets a space in front.
bool read_splitting(const Section& splitter) {
  splitter.require_type("ByteLevel");
  splitter.require_neutral("use_regex", true);
  return splitter.flag("add_prefix_space", true);
}

/// A merge is "left right" in older files, ["left", "right"] in newer ones.
void add_merge(const Json& merge, const std::string& where, BpeVocabulary& vocabulary) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      vocabulary.add_merge(text.substr(0, space), text.substr(space + 1), where);
      return;
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    vocabulary.add_merge(merge[0].get_ref<const std::string&>(),
                         merge[1].get_ref<const std::string&>(), where);
    return;
  }
  throw DataError(where + ": " + printable(merge.dump()) + " is no pair of tokens");
}

void add_merges(const Section& model, BpeVocabulary& vocabulary) {
  const Json& merges = model.at("merges");
  if (!merges.is_array()) throw DataError(model.path + ": model.merges is no list");
  for (std::size_t i = 0; i < merges.size(); ++i) {
    add_merge(merges[i], model.path + ": model.merges[" + std::to_string(i) + "]", vocabulary);
  }
}

void add_special(const Section& token, BpeVocabulary& vocabulary) {
  const std::string where = token.path + ": " + token.key.substr(0, token.key.size() - 1);
  if (!token.at("content").is_string() || !token.at("id").is_number_unsigned()) {
    throw DataError(where + " has no content (text) or no id (a number)");
  }
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) token.require_neutral(flag, false);
  vocabulary.add_special(token.at("content").get_ref<const std::string&>(),
                         token.at("id").get<std::int64_t>(), where);
}

void add_specials(const Section& file, BpeVocabulary& vocabulary) {
  const Json& tokens = file.at("added_tokens");
  if (tokens.is_null()) return;
  if (!tokens.is_array()) throw DataError(file.path + ": added_tokens is no list");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string key = "added_tokens[" + std::to_string(i) + "]";
    if (!tokens[i].is_object()) throw DataError(file.path + ": " + key + " is no JSON object");
    add_special({tokens[i], file.path, key + "."}, vocabulary);
  }
}

}  // namespace

BpeDefinition read_tokenizer_json(const std::string& path) {
  const Json json = read_json_file(path);
  if (!json.is_object()) throw DataError(path + " is no JSON object");
  const Section file{json, path, ""};
  const Section model = file.section("model");
  check_model(model);
  check_surroundings(file);
  const bool add_prefix_space = read_splitting(file.section("pre_tokenizer"));
  BpeVocabulary vocabulary(model.at("vocab"), path + ": model.vocab");
  add_merges(model, vocabulary);
  add_specials(file, vocabulary);
  BpeDefinition definition = vocabulary.finish(path + ": model.vocab");
  definition.add_prefix_space = add_prefix_space;
  return definition;
}

}  // namespace hydra::detail
