#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "hydra/core/clock.h"

namespace hydra {

/// Appends to a file; each append is there whole or not at all.
///
/// Several objects and processes may append to one file: each has a regular file to itself while it
/// appends (a lock, where the file system has them), so none cuts off what another wrote.
///
/// Errors: SystemError with path and cause. Thread safety: thread-compatible.
class AppendFile {
 public:
  /// Makes the file, or goes on with one that is there. What is no regular file (a pipe, a
  /// terminal) may take `patience` to accept more, then the append fails.
  explicit AppendFile(std::string path, Nanoseconds patience = std::chrono::seconds(10));
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  bool is_open() const noexcept { return file_ >= 0; }
  /// As it was after the last append, or is while one is made.
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  /// Returns true when the file is empty or its last byte is a line's end.
  bool ends_with_line() const;

  /// Appends in one system call unless a signal, a limit or a full drive cuts it; on failure the
  /// file is cut back to what it was.
  void append(std::string_view bytes);
  /// Appends what `make` returns once the file is this object's alone, with its size as of then.
  void append_made(const std::function<std::string()>& make);
  /// Closes; again does nothing. The system may tell only here that a write has failed.
  void close();

 private:
  [[noreturn]] void fail(int error) const;
  void look_at_size();
  bool lock();
  void write_all(std::string_view bytes, bool locked);
  bool take_back(std::int64_t part, bool locked);
  bool wait_for_room() const;

  std::string path_;
  Nanoseconds patience_;
  int file_ = -1;
  bool regular_ = false;
  std::int64_t size_bytes_ = 0;
};

}  // namespace hydra
