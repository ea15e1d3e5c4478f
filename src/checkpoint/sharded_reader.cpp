#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/shard_index.h"
#include "data/shown_text.h"
#include "hydra/checkpoint/sharded_safetensors.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

/// The index and a file have to name the same tensors.
void check_against_index(const SafetensorsReader& file, const std::vector<std::string>& expected,
                         const std::string& index_path) {
  std::vector<std::string> missing;
  std::ranges::copy_if(expected, std::back_inserter(missing),
                       [&file](const std::string& name) { return file.find(name) == nullptr; });
  if (!missing.empty()) {
    throw DataError(file.path() + " lacks tensors that " + index_path +
                    " says it has: " + detail::list_text(missing));
  }
  const std::unordered_set<std::string_view> named(expected.begin(), expected.end());
  std::vector<std::string> surplus;
  for (const TensorSpec& tensor : file.tensors()) {
    if (!named.contains(tensor.name)) surplus.push_back(tensor.name);
  }
  if (!surplus.empty()) {
    throw DataError(file.path() + " has tensors that " + index_path +
                    " does not give it: " + detail::list_text(surplus));
  }
}

}  // namespace

struct ShardedSafetensorsReader::Impl {
  explicit Impl(const std::string& folder) {
    const std::filesystem::path base(folder);
    const std::string single = (base / detail::kSingleFile).string();
    const std::string index = (base / detail::kIndexFile).string();
    std::error_code error;
    if (std::filesystem::exists(single, error)) {
      add(SafetensorsReader(single));
    } else if (std::filesystem::exists(index, error)) {
      for (const auto& [file, names_there] : detail::read_shard_index(index)) {
        SafetensorsReader reader((base / file).string());
        check_against_index(reader, names_there, index);
        add(std::move(reader));
      }
    } else {
      throw DataError("the folder " + folder +
                      " holds no weights: " + std::string(detail::kSingleFile) + " or " +
                      std::string(detail::kIndexFile) + " is needed");
    }
    names = detail::TensorNames(tensors);
  }

  void add(SafetensorsReader reader) {
    for (const TensorSpec& tensor : reader.tensors()) {
      tensors.push_back(tensor);
      file_of.push_back(files.size());
    }
    metadata.insert(reader.metadata().begin(), reader.metadata().end());
    files.push_back(std::move(reader));
  }

  std::vector<SafetensorsReader> files;
  std::vector<TensorSpec> tensors;
  std::vector<std::size_t> file_of;  ///< of each tensor
  TensorMetadata metadata;
  detail::TensorNames names{{}};
};

ShardedSafetensorsReader::ShardedSafetensorsReader(const std::string& folder)
    : impl_(std::make_unique<Impl>(folder)) {}
ShardedSafetensorsReader::ShardedSafetensorsReader(ShardedSafetensorsReader&&) noexcept = default;
ShardedSafetensorsReader& ShardedSafetensorsReader::operator=(ShardedSafetensorsReader&&) noexcept =
    default;
ShardedSafetensorsReader::~ShardedSafetensorsReader() = default;

const std::vector<TensorSpec>& ShardedSafetensorsReader::tensors() const noexcept {
  return impl_->tensors;
}

const TensorMetadata& ShardedSafetensorsReader::metadata() const noexcept {
  return impl_->metadata;
}

const TensorSpec* ShardedSafetensorsReader::find(std::string_view name) const noexcept {
  const std::size_t place = impl_->names.find(name);
  return place == detail::TensorNames::kNone ? nullptr : &impl_->tensors[place];
}

void ShardedSafetensorsReader::read(std::string_view name, Bytes offset,
                                    std::span<std::byte> into) const {
  const std::size_t place = impl_->names.find(name);
  if (place == detail::TensorNames::kNone) {
    throw InvalidArgument("no file of the checkpoint has a tensor " + in_quotes(name));
  }
  impl_->files[impl_->file_of[place]].read(name, offset, into);
}

}  // namespace hydra
