#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hydra/checkpoint/tensor_format.h"
#include "hydra/core/bytes.h"

namespace hydra {

/// A safetensors file, read tensor by tensor; docs/formats/safetensors.md describes and limits it.
///
/// Opening reads and checks the header alone. The file's bytes are never mapped or held.
/// Thread safety: immutable; several threads may read at once. Lifetime: move-only.
class SafetensorsReader {
 public:
  /// Errors: DataError names the file, the tensor and the rule that is broken. A file that was
  /// made to harm gets one too, before memory is taken for what it claims.
  explicit SafetensorsReader(const std::string& path);
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;
  ~SafetensorsReader();

  const std::string& path() const noexcept;
  /// Returns the tensors in the order of their bytes.
  const std::vector<TensorSpec>& tensors() const noexcept;
  const TensorMetadata& metadata() const noexcept;
  /// Returns null for a name that the file does not have.
  const TensorSpec* find(std::string_view name) const noexcept;

  /// Reads `into.size()` bytes of a tensor, from its byte `offset` on.
  /// Errors: InvalidArgument for an unknown name or a range beyond the tensor; DataError when the
  /// file has become shorter or the drive fails. Blocks: on the drive.
  void read(std::string_view name, Bytes offset, std::span<std::byte> into) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes a safetensors file whose tensors are known, their bytes not yet: they come in pieces, in
/// any order of tensors.
///
/// The bytes written are a function of tensors, metadata and contents alone. Nothing is seen under
/// `path` until commit(), and what was there before stays until then.
/// Thread safety: thread-compatible. Lifetime: move-only; without commit() the temporary file goes.
class SafetensorsWriter {
 public:
  /// Creates the temporary file with room for all bytes.
  /// Errors: InvalidArgument for names given twice, empty or not UTF-8, the name "__metadata__",
  /// shapes as in bytes_of, or a header beyond the format's limit; SystemError with path and cause
  /// (a full drive is seen here). Nothing is left in either case.
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                    const TensorMetadata& metadata = {});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// Appends the next bytes of a tensor.
  /// Errors: InvalidArgument for an unknown name or bytes beyond the tensor; SystemError.
  void append(std::string_view name, std::span<const std::byte> bytes);

  /// Flushes to the drive and gives the file its name. Nothing may follow.
  /// Errors: InvalidArgument names a tensor whose bytes are not all there; SystemError. The file
  /// under `path` is the old one after either, or the new one, whole, when flushing the folder was
  /// what failed. Blocks: on the drive.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
