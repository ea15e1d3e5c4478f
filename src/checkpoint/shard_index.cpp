#include "checkpoint/shard_index.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/json_file.h"
#include "data/shown_text.h"
#include "hydra/core/error.h"

namespace hydra::detail {
namespace {

constexpr std::size_t kMostListed = 10;

/// An index comes from strangers: it must not lead out of its folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == name.npos && name.find('\0') == name.npos &&
         name != "." && name != "..";
}

}  // namespace

ShardIndex read_shard_index(const std::string& path) {
  const nlohmann::json json = read_json_file(path);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    throw DataError(path + ": weight_map is no JSON object of tensor to file");
  }
  ShardIndex index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      throw DataError(path + ": tensor " + in_quotes(tensor) + " is mapped to " +
                      printable(file.dump()) + ", which is no name of a file in the folder");
    }
    index[file.get<std::string>()].push_back(tensor);
  }
  return index;
}

std::string index_text(const ShardIndex& index, Bytes total) {
  nlohmann::json json;
  json["metadata"]["total_size"] = total.count();
  json["weight_map"] = nlohmann::json::object();
  for (const auto& [file, tensors] : index) {
    for (const std::string& tensor : tensors) json["weight_map"][tensor] = file;
  }
  return json.dump(2) + "\n";
}

std::vector<std::vector<TensorSpec>> cut_into_files(const std::vector<TensorSpec>& tensors,
                                                    Bytes largest) {
  std::vector<std::vector<TensorSpec>> files;
  std::vector<TensorSpec> current;
  Bytes used;
  for (const TensorSpec& tensor : tensors) {
    const Bytes bytes = bytes_of(tensor);
    if (bytes > largest) {
      files.push_back({tensor});
      continue;
    }
    if (bytes > largest - used) {
      files.push_back(std::move(current));
      current.clear();
      used = Bytes();
    }
    current.push_back(tensor);
    used += bytes;
  }
  if (!current.empty() || files.empty()) files.push_back(std::move(current));
  return files;
}

std::string shard_name(std::size_t number, std::size_t count) {
  if (count == 1) return std::string(kSingleFile);
  char text[80];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", number, count);
  return text;
}

std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostListed); ++i) {
    text += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  }
  if (names.size() > kMostListed) {
    text += " and " + std::to_string(names.size() - kMostListed) + " more";
  }
  return text;
}

}  // namespace hydra::detail
