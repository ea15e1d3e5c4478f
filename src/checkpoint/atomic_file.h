#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/positioned_file.h"

namespace hydra::detail {

/// A file that appears under its name whole, with all its bytes on the drive, or not at all.
///
/// Source: Pillai et al., All File Systems Are Not Created Equal, OSDI 2014, section 4: flush the
/// file, rename, flush the folder.
/// Thread safety: thread-compatible. Lifetime: move-only; without commit() nothing is left.
class AtomicFile {
 public:
  /// Creates `path`.PID-K.part with room for all bytes.
  /// Errors: SystemError with path and cause; nothing is left.
  AtomicFile(const std::string& path, std::int64_t bytes);
  AtomicFile(AtomicFile&&) noexcept = default;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  const std::string& path() const noexcept { return path_; }
  void write_at(std::int64_t offset, std::span<const std::byte> from);
  /// Blocks: on the drive. Nothing may follow.
  void commit();

 private:
  std::string path_;
  PositionedFile file_;
};

}  // namespace hydra::detail
