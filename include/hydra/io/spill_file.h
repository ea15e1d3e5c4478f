#pragma once

#include <string>

#include "hydra/core/bytes.h"
#include "hydra/core/log.h"

namespace hydra {

/// A file of a drive that belongs to this process alone and is gone with it, whatever ends it.
///
/// Its space is reserved when it is made, so that a full disk is met before any work starts; where
/// the file system has no fallocate, by writing all of it once (one notice). It has no name where
/// the file system allows that (O_TMPFILE); elsewhere it has one, locked, for the moment between
/// its making and its unlinking, and whoever comes next to the directory removes what a crash in
/// that moment left: files with our name that nobody has locked.
///
/// O_DIRECT is used where the file system takes it (tmpfs and some overlays do not: one notice).
/// Move-only. Thread safety: immutable.
class SpillFile {
 public:
  /// Makes the directory if it is not there; its parent must be.
  /// Errors: StorageError names the directory and says what to do: its parent is missing, it is
  /// read-only or not a directory; or the drive is full, with needed and free bytes.
  SpillFile(const std::string& directory, Bytes size, LogSink& log);
  SpillFile(SpillFile&& other) noexcept;
  SpillFile& operator=(SpillFile&& other) noexcept;
  ~SpillFile();

  int descriptor() const noexcept { return descriptor_; }
  bool direct() const noexcept { return direct_; }
  Bytes size() const noexcept { return size_; }

 private:
  int descriptor_ = -1;
  bool direct_ = false;
  Bytes size_;
};

}  // namespace hydra
