#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hydra/checkpoint/safetensors.h"

namespace hydra {

/// The weights of a folder as hubs hold it: model.safetensors, else the files that
/// model.safetensors.index.json names, read as if they were one.
///
/// Thread safety: immutable; several threads may read at once. Lifetime: move-only.
class ShardedSafetensorsReader {
 public:
  /// Errors: DataError when neither is there, when index and files disagree (names are listed), or
  /// as SafetensorsReader.
  explicit ShardedSafetensorsReader(const std::string& folder);
  ShardedSafetensorsReader(ShardedSafetensorsReader&&) noexcept;
  ShardedSafetensorsReader& operator=(ShardedSafetensorsReader&&) noexcept;
  ~ShardedSafetensorsReader();

  /// Returns the tensors of all files, file by file.
  const std::vector<TensorSpec>& tensors() const noexcept;
  /// Returns the metadata of the files; where two have the same key, the first file's.
  const TensorMetadata& metadata() const noexcept;
  const TensorSpec* find(std::string_view name) const noexcept;
  /// As SafetensorsReader::read.
  void read(std::string_view name, Bytes offset, std::span<std::byte> into) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes the weights of a folder: model.safetensors where they fit one file, else shards and their
/// index, cut in the order of the tensors as huggingface_hub cuts them.
///
/// Thread safety: thread-compatible. Lifetime: move-only; without commit() nothing is left.
class ShardedSafetensorsWriter {
 public:
  /// `largest_file` bounds the tensors' bytes in one file; a larger tensor has a file of its own.
  /// Errors: InvalidArgument when `largest_file` is not positive, when shards would go to a folder
  /// that holds weights already, or one file beside an index: a reader could take a mixture of old
  /// and new for whole. And those of SafetensorsWriter.
  ShardedSafetensorsWriter(const std::string& folder, const std::vector<TensorSpec>& tensors,
                           const TensorMetadata& metadata, Bytes largest_file);
  ShardedSafetensorsWriter(ShardedSafetensorsWriter&&) noexcept;
  ShardedSafetensorsWriter& operator=(ShardedSafetensorsWriter&&) noexcept;
  ~ShardedSafetensorsWriter();

  /// Returns the names of the files that commit() leaves, the index last.
  std::vector<std::string> file_names() const;
  void append(std::string_view name, std::span<const std::byte> bytes);
  /// Commits every shard, then the index: a failure on the way leaves a folder without an index,
  /// which no reader takes for complete.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
