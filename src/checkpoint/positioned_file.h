#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace hydra::detail {

/// Owns a file descriptor that is read or written at given places.
/// Thread safety: reads and writes may run at once, closing may not.
class PositionedFile {
 public:
  /// Opens a regular file for reading. Errors: DataError with path and cause.
  static PositionedFile open_for_reading(const std::string& path);
  /// Creates a file that must not be there yet; holds no file when it is.
  /// Errors: SystemError with path and cause.
  static PositionedFile create(const std::string& path);

  PositionedFile() = default;
  PositionedFile(PositionedFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}
  PositionedFile& operator=(PositionedFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(path_, other.path_);
    return *this;
  }
  ~PositionedFile();

  bool is_open() const noexcept { return descriptor_ >= 0; }
  const std::string& path() const noexcept { return path_; }
  std::int64_t size() const;

  /// Errors: DataError when the file ends before or the drive fails.
  void read_at(std::int64_t offset, std::span<std::byte> into) const;

  /// Takes room on the drive. Errors (here and below): SystemError with path and cause.
  void reserve(std::int64_t bytes);
  void write_at(std::int64_t offset, std::span<const std::byte> from);
  /// Flushes data and size to the drive.
  void flush();

 private:
  PositionedFile(int descriptor, std::string path)
      : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::string path_;
};

}  // namespace hydra::detail
