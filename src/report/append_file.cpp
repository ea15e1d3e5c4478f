#include "report/append_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "hydra/core/check.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

const char* way_out(int error) {
  switch (error) {
    case ENOENT:
      return ": make the folder, or name another";
    case EACCES:
    case EPERM:
    case EROFS:
      return ": name a place that this process may write to";
    case ENOSPC:
    case EDQUOT:
      return ": make room, or name a place on another drive";
    case EFBIG:
      return ": raise the limit of a file's size (ulimit -f)";
    case EAGAIN:
      return ": nobody reads it";
    case EMFILE:
    case ENFILE:
      return ": raise the limit of open files (ulimit -n)";
    default:
      return "";
  }
}

}  // namespace

void AppendFile::fail(int error) const {
  throw SystemError("cannot write " + path_ + ": " + system_message(error) + way_out(error));
}

AppendFile::AppendFile(std::string path, Nanoseconds patience)
    : path_(std::move(path)), patience_(patience) {
  file_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file_ < 0) fail(errno);
  struct stat state {};
  regular_ = ::fstat(file_, &state) == 0 && S_ISREG(state.st_mode);
  look_at_size();
}

// Others may have appended, or have cut the file off.
void AppendFile::look_at_size() {
  struct stat state {};
  if (regular_ && ::fstat(file_, &state) == 0) size_bytes_ = state.st_size;
}

AppendFile::~AppendFile() {
  if (file_ >= 0) ::close(file_);
}

bool AppendFile::ends_with_line() const {
  char last = '\n';
  if (!regular_ || size_bytes_ == 0) return true;
  if (::pread(file_, &last, 1, size_bytes_ - 1) != 1) fail(errno);
  return last == '\n';
}

void AppendFile::append(std::string_view bytes) {
  append_made([&] { return std::string(bytes); });
}

void AppendFile::append_made(const std::function<std::string()>& make) {
  HYDRA_CHECK(is_open(), path_ + " has been closed");
  const bool locked = lock();
  try {
    look_at_size();
    write_all(make(), locked);
  } catch (...) {
    if (locked && is_open()) ::flock(file_, LOCK_UN);
    throw;
  }
  if (locked) ::flock(file_, LOCK_UN);
}

bool AppendFile::lock() {
  if (!regular_) return false;
  while (::flock(file_, LOCK_EX) != 0) {
    if (errno != EINTR) return false;  // the file system has no locks
  }
  return true;
}

void AppendFile::write_all(std::string_view bytes, bool locked) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(file_, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN && wait_for_room()) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      // Where part of it cannot be taken back, nothing may follow it.
      if (done > 0 && !take_back(static_cast<std::int64_t>(done), locked)) {
        ::close(std::exchange(file_, -1));
      }
      fail(error);
    }
    done += static_cast<std::size_t>(written);
  }
  size_bytes_ += static_cast<std::int64_t>(bytes.size());
}

// Without a lock another process may have appended meanwhile: that is not ours to cut off.
bool AppendFile::take_back(std::int64_t part, bool locked) {
  struct stat state {};
  const bool last = locked || (::fstat(file_, &state) == 0 && state.st_size == size_bytes_ + part);
  return regular_ && last && ::ftruncate(file_, size_bytes_) == 0;
}

/// False, with errno as it was, when nobody has made room for long enough.
bool AppendFile::wait_for_room() const {
  pollfd file{file_, POLLOUT, 0};
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(patience_);
  const int ready = ::poll(&file, 1, static_cast<int>(most.count()));
  if (ready > 0 || (ready < 0 && errno == EINTR)) return true;
  errno = EAGAIN;
  return false;
}

void AppendFile::close() {
  if (file_ >= 0 && ::close(std::exchange(file_, -1)) != 0) fail(errno);
}

}  // namespace hydra
