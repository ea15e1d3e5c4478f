#pragma once

#include <string>
#include <string_view>

#include "hydra/core/output_path.h"

namespace hydra {

/// A file that a program writes whole when its work is done, and checks before it begins.
///
/// A regular file is replaced at once, by rename, and keeps its permissions; a symbolic link stays
/// and the file at its end is replaced; a device or pipe is written through.
/// Errors: SystemError with path, cause and way out. Thread safety: thread-compatible.
class OutputFile {
 public:
  /// Makes sure that the file can be written, as far as can be told beforehand: a file is made
  /// beside it and removed. What is there stays as it is.
  explicit OutputFile(std::string path);

  const std::string& path() const noexcept { return path_; }
  /// Writes the file anew. Blocks: on the drive, and on a pipe's reader.
  void write(std::string_view text) const;

 private:
  std::string path_;
};

}  // namespace hydra
