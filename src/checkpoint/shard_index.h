#pragma once

#include <map>
#include <string>
#include <vector>

#include "hydra/checkpoint/tensor_format.h"

namespace hydra::detail {

inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

/// Tensor names by the file of the folder that holds them, both in order.
using ShardIndex = std::map<std::string, std::vector<std::string>>;

/// Errors: DataError with the path and what is wrong.
ShardIndex read_shard_index(const std::string& path);

/// Returns the index as JSON, spelled as huggingface_hub spells it.
std::string index_text(const ShardIndex& index, Bytes total);

/// Returns the tensors of each file: in their order, a new file where one would pass `largest`, and
/// a file of its own for a tensor that is larger.
std::vector<std::vector<TensorSpec>> cut_into_files(const std::vector<TensorSpec>& tensors,
                                                    Bytes largest);

/// Returns "model.safetensors", or "model-00002-of-00003.safetensors" for the second of three.
std::string shard_name(std::size_t number, std::size_t count);

/// Returns a message's list of at most ten names.
std::string list_text(const std::vector<std::string>& names);

}  // namespace hydra::detail
