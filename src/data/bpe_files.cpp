#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/bpe_definition.h"
#include "data/bpe_vocabulary.h"
#include "data/json_file.h"
#include "data/shown_text.h"
#include "hydra/core/error.h"

namespace hydra::detail {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

void add_merge_line(std::string_view line, const std::string& where, BpeVocabulary& vocabulary) {
  const std::size_t space = line.find(' ');
  const bool one_space = space != std::string_view::npos && line.find(' ', space + 1) == line.npos;
  if (!one_space || space == 0 || space + 1 == line.size()) {
    throw DataError(where + ": " + in_quotes(line) +
                    " is no merge: two tokens with one space between them are");
  }
  vocabulary.add_merge(line.substr(0, space), line.substr(space + 1), where);
}

/// A first line "#version: 0.2" is no merge; empty lines may only end the file.
void add_merges(const std::string& path, BpeVocabulary& vocabulary) {
  const std::string text = read_small_file(path);
  std::string_view rest = text;
  while (!rest.empty() && (rest.back() == '\n' || rest.back() == '\r')) rest.remove_suffix(1);
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (number == 1 && line.starts_with("#version")) continue;
    add_merge_line(line, path + ", line " + std::to_string(number), vocabulary);
  }
}

void add_specials(const std::string& path, const BpeOptions& options, BpeVocabulary& vocabulary) {
  if (!options.special_tokens) {
    const std::string content(kEndOfText);
    const std::int64_t id = vocabulary.find(content);
    if (id >= 0) vocabulary.add_special(content, id, path);
    return;
  }
  for (const std::string& content : *options.special_tokens) {
    const std::int64_t id = vocabulary.find(content);
    if (id < 0) {
      throw InvalidArgument("special_tokens names " + in_quotes(content) + ", which is not in " +
                            path);
    }
    vocabulary.add_special(content, id, path);
  }
}

/// added_tokens.json: token to id, those beyond vocab.json.
void add_added_tokens(const std::string& path, BpeVocabulary& vocabulary) {
  const nlohmann::json tokens = read_json_file(path);
  if (!tokens.is_object()) throw DataError(path + " is no JSON object of token to id");
  for (const auto& [content, id] : tokens.items()) {
    if (!id.is_number_integer()) {
      throw DataError(path + ", token " + in_quotes(content) + ": the id " + printable(id.dump()) +
                      " is none");
    }
    vocabulary.add_special(content, id.get<std::int64_t>(), path);
  }
}

BpeDefinition read_files(const std::string& vocabulary_path, const std::string& merges,
                         const std::string& added, const BpeOptions& options) {
  BpeVocabulary vocabulary(read_json_file(vocabulary_path), vocabulary_path);
  add_merges(merges, vocabulary);
  if (!added.empty()) add_added_tokens(added, vocabulary);
  add_specials(vocabulary_path, options, vocabulary);
  return vocabulary.finish(vocabulary_path);
}

}  // namespace

BpeDefinition read_bpe_files(const std::string& vocabulary, const std::string& merges,
                             const BpeOptions& options) {
  return read_files(vocabulary, merges, "", options);
}

BpeDefinition read_bpe_folder(const std::string& folder, const BpeOptions& options) {
  const auto path = [&folder](const char* name) {
    return (std::filesystem::path(folder) / name).string();
  };
  const auto is_there = [&path](const char* name) {
    std::error_code error;
    return std::filesystem::exists(path(name), error);
  };
  if (is_there("tokenizer.json")) return read_tokenizer_json(path("tokenizer.json"));
  if (is_there("vocab.json") && is_there("merges.txt")) {
    const std::string added = is_there("added_tokens.json") ? path("added_tokens.json") : "";
    return read_files(path("vocab.json"), path("merges.txt"), added, options);
  }
  if (is_there("encoder.json") && is_there("vocab.bpe")) {
    return read_files(path("encoder.json"), path("vocab.bpe"), "", options);
  }
  throw DataError("the folder " + folder +
                  " holds no tokenizer: tokenizer.json, or vocab.json and " +
                  "merges.txt, or encoder.json and vocab.bpe are needed");
}

}  // namespace hydra::detail
