#include "report/append_file.h"

#include <fcntl.h>
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

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) fail(errno);
  struct stat state {};
  if (::fstat(file_, &state) == 0 && S_ISREG(state.st_mode)) size_bytes_ = state.st_size;
}

AppendFile::~AppendFile() {
  if (file_ >= 0) ::close(file_);
}

bool AppendFile::ends_with_line() const {
  char last = '\n';
  if (size_bytes_ > 0 && ::pread(file_, &last, 1, size_bytes_ - 1) != 1) fail(errno);
  return last == '\n';
}

void AppendFile::append(std::string_view bytes) {
  HYDRA_CHECK(is_open(), path_ + " has been closed");
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(file_, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      // Where part of it cannot be taken back, nothing may follow it.
      if (done > 0 && ::ftruncate(file_, size_bytes_) != 0) ::close(std::exchange(file_, -1));
      fail(error);
    }
    done += static_cast<std::size_t>(written);
  }
  size_bytes_ += static_cast<std::int64_t>(bytes.size());
}

void AppendFile::close() {
  if (file_ >= 0 && ::close(std::exchange(file_, -1)) != 0) fail(errno);
}

}  // namespace hydra
