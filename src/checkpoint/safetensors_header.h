#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hydra/checkpoint/tensor_format.h"

namespace hydra::detail {

inline constexpr std::uint64_t kSmallestHeader = 2;
inline constexpr std::uint64_t kLargestHeader = 100'000'000;
inline constexpr std::size_t kMostDimensions = 64;
inline constexpr std::string_view kMetadataName = "__metadata__";

/// What a header says. `begins[i]` is where `tensors[i]` begins in the data.
struct SafetensorsHeader {
  std::vector<TensorSpec> tensors{};  ///< in the order of their bytes
  std::vector<std::int64_t> begins{};
  TensorMetadata metadata{};
};

/// Parses and checks the JSON of a header in front of `data_bytes` of data.
/// Errors: DataError begins with `where` and names the tensor and the broken rule.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes,
                                           const std::string& where);

/// Puts the tensors into the order of their bytes in a file and lays them out.
/// Errors: InvalidArgument as SafetensorsWriter's constructor.
SafetensorsHeader lay_out(std::vector<TensorSpec> tensors, const TensorMetadata& metadata);

/// Returns the header's length and JSON, padded, as a file begins with them.
/// Errors: InvalidArgument when it is larger than the format allows.
std::string header_text(const SafetensorsHeader& header);

/// Finds tensors by name. Lifetime: borrows the tensors.
class TensorNames {
 public:
  explicit TensorNames(const std::vector<TensorSpec>& tensors) {
    places_.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) places_.emplace(tensors[i].name, i);
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t find(std::string_view name) const {
    const auto found = places_.find(name);
    return found == places_.end() ? kNone : found->second;
  }

 private:
  std::unordered_map<std::string_view, std::size_t> places_;
};

}  // namespace hydra::detail
