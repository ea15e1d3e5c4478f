#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hydra {

/// Appends to a file; each append is there whole or not at all, also where other processes append
/// to the same file this way (each holds a lock meanwhile).
///
/// Errors: SystemError with path and cause; a pipe whose reader does not read for five seconds
/// counts as one. Thread safety: thread-compatible.
class AppendFile {
 public:
  /// Makes the file, or goes on with one that is there.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  bool is_open() const noexcept { return file_ >= 0; }
  /// As of the last append.
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  /// Returns true when the file is empty or its last byte is a line's end.
  bool ends_with_line() const;

  /// Appends in one system call unless a signal, a limit or a full drive cuts it; on failure the
  /// file is cut back to what it was.
  void append(std::string_view bytes);
  /// Closes; again does nothing. The system may tell only here that a write has failed.
  void close();

 private:
  [[noreturn]] void fail(int error) const;
  void write_all(std::string_view bytes);
  bool wait_for_reader() const;

  std::string path_;
  int file_ = -1;
  std::int64_t size_bytes_ = 0;
};

}  // namespace hydra
