#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "checkpoint/safetensors_header.h"
#include "data/shown_text.h"
#include "data/unicode_class.h"
#include "hydra/core/error.h"

namespace hydra::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kAlignment = 8;  // the largest element's, so that data can be mapped

void check_name(const std::string& name) {
  if (name.empty()) throw InvalidArgument("a tensor has no name");
  if (name == kMetadataName) throw InvalidArgument("no tensor can be named " + name);
  if (!is_utf8(name)) throw InvalidArgument("the tensor name " + in_quotes(name) + " is not UTF-8");
}

void check_names(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    check_name(tensor.name);
    names.push_back(tensor.name);
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) {
    throw InvalidArgument("two tensors are named " + in_quotes(*twice));
  }
}

void check_metadata(const TensorMetadata& metadata) {
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      throw InvalidArgument("the metadata " + in_quotes(key) + " is not UTF-8");
    }
  }
}

}  // namespace

SafetensorsHeader lay_out(std::vector<TensorSpec> tensors, const TensorMetadata& metadata) {
  check_names(tensors);
  check_metadata(metadata);
  std::ranges::sort(tensors, [](const TensorSpec& a, const TensorSpec& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  SafetensorsHeader header{.metadata = metadata};
  std::int64_t begin = 0;
  for (TensorSpec& tensor : tensors) {
    const std::int64_t bytes = bytes_of(tensor).count();
    if (tensor.shape.size() > kMostDimensions ||
        bytes > std::numeric_limits<std::int64_t>::max() - begin) {
      throw InvalidArgument("tensor " + in_quotes(tensor.name) +
                            " makes the file larger than the format");
    }
    header.begins.push_back(begin);
    begin += bytes;
    header.tensors.push_back(std::move(tensor));
  }
  return header;
}

std::string header_text(const SafetensorsHeader& header) {
  Json json = Json::object();
  if (!header.metadata.empty()) json[std::string(kMetadataName)] = header.metadata;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorSpec& tensor = header.tensors[i];
    const std::int64_t begin = header.begins[i];
    // Names are known to differ; looking each one up would be quadratic in an ordered object.
    json.get_ref<Json::object_t&>().emplace_back(
        tensor.name, Json{{"dtype", std::string(to_string(tensor.dtype))},
                          {"shape", tensor.shape},
                          {"data_offsets", {begin, begin + bytes_of(tensor).count()}}});
  }
  std::string text = json.dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  if (text.size() > kLargestHeader) {
    throw InvalidArgument("the header would have " + std::to_string(text.size()) + " bytes, " +
                          std::to_string(kLargestHeader) + " are the format's limit: write shards");
  }
  std::string length;
  for (std::size_t i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> 8 * i & 0xFFU);
  return length + text;
}

}  // namespace hydra::detail
