#include <filesystem>
#include <unordered_map>

#include "checkpoint/atomic_file.h"
#include "checkpoint/shard_index.h"
#include "data/shown_text.h"
#include "hydra/checkpoint/sharded_safetensors.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

std::string path_in(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

/// A mixture of old and new files could be taken for whole weights.
void check_folder(const std::string& folder, bool one_file) {
  std::error_code error;
  const bool has_index = std::filesystem::exists(path_in(folder, detail::kIndexFile), error);
  const bool has_single = std::filesystem::exists(path_in(folder, detail::kSingleFile), error);
  if (has_index || (has_single && !one_file)) {
    throw InvalidArgument("the folder " + folder + " holds weights already (" +
                          std::string(has_index ? detail::kIndexFile : detail::kSingleFile) +
                          "): write to an empty folder");
  }
}

}  // namespace

struct ShardedSafetensorsWriter::Impl {
  Impl(const std::string& into, const std::vector<TensorSpec>& tensors,
       const TensorMetadata& metadata, Bytes largest)
      : folder(into) {
    if (largest <= Bytes(0)) throw InvalidArgument("largest_file has to be positive");
    const auto groups = detail::cut_into_files(tensors, largest);
    check_folder(folder, groups.size() == 1);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      add(detail::shard_name(i + 1, groups.size()), groups[i], metadata);
    }
  }

  void add(const std::string& name, const std::vector<TensorSpec>& tensors,
           const TensorMetadata& metadata) {
    for (const TensorSpec& tensor : tensors) {
      if (!file_of.emplace(tensor.name, files.size()).second) {
        throw InvalidArgument("two tensors are named " + in_quotes(tensor.name));
      }
      index[name].push_back(tensor.name);
      total += bytes_of(tensor);
    }
    names.push_back(name);
    files.emplace_back(path_in(folder, name), tensors, metadata);
  }

  void commit_index() {
    const std::string text = detail::index_text(index, total);
    detail::AtomicFile file(path_in(folder, detail::kIndexFile),
                            static_cast<std::int64_t>(text.size()));
    file.write_at(0, std::as_bytes(std::span(text)));
    file.commit();
  }

  std::string folder;
  std::vector<std::string> names;
  std::vector<SafetensorsWriter> files;
  std::unordered_map<std::string, std::size_t> file_of;
  detail::ShardIndex index;
  Bytes total;
};

ShardedSafetensorsWriter::ShardedSafetensorsWriter(const std::string& folder,
                                                   const std::vector<TensorSpec>& tensors,
                                                   const TensorMetadata& metadata,
                                                   Bytes largest_file)
    : impl_(std::make_unique<Impl>(folder, tensors, metadata, largest_file)) {}
ShardedSafetensorsWriter::ShardedSafetensorsWriter(ShardedSafetensorsWriter&&) noexcept = default;
ShardedSafetensorsWriter& ShardedSafetensorsWriter::operator=(ShardedSafetensorsWriter&&) noexcept =
    default;
ShardedSafetensorsWriter::~ShardedSafetensorsWriter() = default;

std::vector<std::string> ShardedSafetensorsWriter::file_names() const {
  std::vector<std::string> names = impl_->names;
  if (names.size() > 1) names.emplace_back(detail::kIndexFile);
  return names;
}

void ShardedSafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = impl_->file_of.find(std::string(name));
  if (found == impl_->file_of.end()) {
    throw InvalidArgument("the checkpoint was opened without a tensor " + in_quotes(name));
  }
  impl_->files[found->second].append(name, bytes);
}

void ShardedSafetensorsWriter::commit() {
  for (SafetensorsWriter& file : impl_->files) file.commit();
  if (impl_->files.size() > 1) impl_->commit_index();
}

}  // namespace hydra
