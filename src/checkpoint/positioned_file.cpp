#include "checkpoint/positioned_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "hydra/core/error.h"

namespace hydra::detail {
namespace {

// Linux moves at most 2 GiB less a page in one call; larger requests would be cut there anyway.
constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;

std::string cause() { return system_message(errno); }

template <typename File, typename... Arguments>
auto retried(File call, Arguments... arguments) {
  while (true) {
    const auto result = call(arguments...);
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace

PositionedFile PositionedFile::open_for_reading(const std::string& path) {
  // O_NONBLOCK: a pipe under that name must not hang the program.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw DataError("cannot open " + path + ": " + cause());
  PositionedFile file(descriptor, path);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw DataError("cannot read " + path + ": " + cause());
  if (!S_ISREG(status.st_mode)) throw DataError(path + " is no regular file");
  return file;
}

PositionedFile PositionedFile::create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == EEXIST) return {};
  if (descriptor < 0) throw SystemError("cannot create " + path + ": " + cause());
  return {descriptor, path};
}

PositionedFile::~PositionedFile() {
  // What close could report has been asked for by flush().
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::int64_t PositionedFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw DataError("cannot read " + path_ + ": " + cause());
  return status.st_size;
}

void PositionedFile::read_at(std::int64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t bytes =
        retried(::pread, descriptor_, into.data(), std::min(into.size(), kLargestTransfer), offset);
    if (bytes < 0) {
      throw DataError("reading " + path_ + " at byte " + std::to_string(offset) +
                      " failed: " + cause());
    }
    if (bytes == 0) {
      throw DataError(path_ + " ends at byte " + std::to_string(offset) + ", " +
                      std::to_string(into.size()) + " bytes before it should: was it replaced?");
    }
    into = into.subspan(static_cast<std::size_t>(bytes));
    offset += bytes;
  }
}

void PositionedFile::reserve(std::int64_t bytes) {
  if (bytes == 0) return;
  if (retried(::fallocate, descriptor_, 0, off_t{0}, off_t{bytes}) == 0) return;
  // A file system that cannot promise room gets the size at least.
  const bool unable = errno == EOPNOTSUPP || errno == ENOSYS;
  if (unable && retried(::ftruncate, descriptor_, off_t{bytes}) == 0) return;
  throw SystemError("cannot take " + std::to_string(bytes) + " bytes for " + path_ + ": " +
                    cause());
}

void PositionedFile::write_at(std::int64_t offset, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t bytes = retried(::pwrite, descriptor_, from.data(),
                                  std::min(from.size(), kLargestTransfer), offset);
    if (bytes < 0) {
      throw SystemError("writing " + path_ + " at byte " + std::to_string(offset) +
                        " failed: " + cause());
    }
    from = from.subspan(static_cast<std::size_t>(bytes));
    offset += bytes;
  }
}

void PositionedFile::flush() {
  if (retried(::fsync, descriptor_) != 0) {
    throw SystemError("flushing " + path_ + " failed: " + cause());
  }
}

}  // namespace hydra::detail
