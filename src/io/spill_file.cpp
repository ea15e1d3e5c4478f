#include "hydra/io/spill_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/io/extent_map.h"

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

/// Makes a directory that is not there, as users expect of one that is written to; a parent that is
/// not there is more likely misspelt.
void ensure_directory(const std::string& directory, LogSink& log) {
  if (directory.empty()) throw StorageError(false, "a storage drive names no directory");
  struct stat state {};
  if (stat(directory.c_str(), &state) == 0 || errno != ENOENT) return;
  std::filesystem::path place = directory;
  while (!place.has_filename() || place.filename() == ".") place = place.parent_path();
  if (mkdir(place.c_str(), 0777) == 0) {
    log.log(LogLevel::kInfo, "made the storage directory " + directory);
    return;
  }
  if (errno == EEXIST) return;  // somebody else was faster, or it is a link to nowhere
  if (errno != ENOENT) refuse(directory, errno);
  const std::string parent = place.has_parent_path() ? place.parent_path().string() : ".";
  throw StorageError(false, "cannot make the storage directory " + directory + ": its parent " +
                                parent + " is not there: make it, or name another");
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

/// Writes a file's whole length once; returns 0 or an errno. Of bytes that do not compress, so that
/// no file system takes them for less than they are.
int reserve_by_writing(int file, std::int64_t size) {
  constexpr std::int64_t kChunk = 1 << 20;
  const std::unique_ptr<void, decltype(&std::free)> chunk(std::aligned_alloc(kChunk, kChunk),
                                                          &std::free);
  if (chunk == nullptr) return ENOMEM;
  SplitMix64 random(static_cast<std::uint64_t>(size));
  for (std::int64_t at = 0; at < kChunk; at += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(static_cast<std::byte*>(chunk.get()) + at, &word, sizeof word);
  }
  for (std::int64_t at = 0; at < size;) {
    const auto bytes = static_cast<std::size_t>(std::min(kChunk, size - at));
    const ssize_t written = pwrite(file, chunk.get(), bytes, at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written % kExtentAlignment != 0 || written == 0) return ENOSPC;  // the last bytes there are
    at += written;
  }
  return 0;
}

/// Takes the space of a file; returns 0 or an errno. Not posix_fallocate, which where the file
/// system has none writes single bytes, and O_DIRECT refuses those.
int reserve(int file, const std::string& directory, Bytes size, LogSink& log) {
  int error = 0;
  do {
    error = fallocate(file, 0, 0, size.count()) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != EOPNOTSUPP && error != ENOSYS) return error;
  log.log(LogLevel::kWarning, "the file system of " + directory + " has no fallocate: " +
                                  to_string(size) + " are written once to reserve them");
  return reserve_by_writing(file, size.count());
}

}  // namespace

SpillFile::SpillFile(const std::string& directory, Bytes size, LogSink& log) : size_(size) {
  ensure_directory(directory, log);
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
  const int reserved = reserve(descriptor_, directory, size, log);
  if (reserved != 0) {
    close(std::exchange(descriptor_, -1));  // before the free bytes are counted
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
