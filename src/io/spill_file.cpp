#include "hydra/io/spill_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "hydra/core/error.h"

namespace hydra {
namespace {

constexpr std::string_view kNamePrefix = ".hydra-spill-";

std::string way_out(int error) {
  switch (error) {
    case ENOENT:
      return ": make the directory, or name another";
    case ENOTDIR:
      return ": name a directory";
    case EACCES:
    case EPERM:
    case EROFS:
      return ": name a directory that this process may write to";
    case EMFILE:
    case ENFILE:
      return ": raise the limit of open files (ulimit -n)";
    default:
      return "";
  }
}

[[noreturn]] void refuse(const std::string& directory, int error) {
  throw StorageError(false, "cannot make a spill file in " + directory + ": " +
                                system_message(error) + way_out(error));
}

[[noreturn]] void refuse_for_space(const std::string& directory, Bytes size, int error) {
  struct statvfs state {};
  std::string free = "an unknown number of";
  if (statvfs(directory.c_str(), &state) == 0) {
    free = to_string(Bytes(static_cast<std::int64_t>(state.f_bavail * state.f_frsize)));
  }
  throw StorageError(false, "the drive of " + directory + " cannot hold " + to_string(size) + ", " +
                                free + " are free (" + system_message(error) +
                                "): make room, lower the storage size, or name another drive");
}

/// Removes the files that a crash has left: ours by name, and locked by nobody.
void remove_leftovers(const std::string& directory) {
  std::error_code error;  // what cannot be looked at is left alone
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!entry->path().filename().native().starts_with(kNamePrefix)) continue;
    const int file = open(entry->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) unlink(entry->path().c_str());
    close(file);
  }
}

/// Makes, locks and unlinks a named file; returns its descriptor or -1 with errno.
int open_named(const std::string& directory, int flags) {
  static_assert(kNamePrefix.size() < 64);
  std::string name = directory + "/" + std::string(kNamePrefix) + "XXXXXX";
  const int file = mkostemp(name.data(), flags | O_CLOEXEC);
  if (file < 0) return -1;
  flock(file, LOCK_EX | LOCK_NB);
  unlink(name.c_str());
  return file;
}

/// Opens a file without a name, or one that loses it at once; returns -1 with errno.
int open_private(const std::string& directory, int flags) {
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  // Kernels and file systems without O_TMPFILE take it for an attempt to write to a directory.
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  return open_named(directory, flags);
}

}  // namespace

SpillFile::SpillFile(const std::string& directory, Bytes size, LogSink& log) : size_(size) {
  remove_leftovers(directory);
  descriptor_ = open_private(directory, O_DIRECT);
  direct_ = descriptor_ >= 0;
  if (descriptor_ < 0 && errno == EINVAL) {
    descriptor_ = open_private(directory, 0);
    if (descriptor_ >= 0) {
      log.log(LogLevel::kWarning, "the file system of " + directory +
                                      " takes no O_DIRECT: spilled bytes pass through the page "
                                      "cache, which costs time and memory beyond the host budget");
    }
  }
  if (descriptor_ < 0) refuse(directory, errno);
  const int reserved = posix_fallocate(descriptor_, 0, size.count());
  if (reserved != 0) {
    close(std::exchange(descriptor_, -1));
    refuse_for_space(directory, size, reserved);
  }
}

SpillFile::SpillFile(SpillFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(other.direct_),
      size_(other.size_) {}

SpillFile& SpillFile::operator=(SpillFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(direct_, other.direct_);
  std::swap(size_, other.size_);
  return *this;
}

SpillFile::~SpillFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace hydra
