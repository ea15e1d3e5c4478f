#include "hydra/report/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "hydra/core/error.h"

namespace hydra {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw SystemError("cannot write " + path + ": " + system_message(error));
}

/// An open file; closed when it dies.
struct Descriptor {
  int number = -1;

  explicit Descriptor(int opened) : number(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

/// A file of its own beside the target; removed unless it has taken the target's name.
class FileBeside {
 public:
  FileBeside(const std::string& path, const std::string& target)
      : path_(path), target_(target), file_(-1) {
    const std::string stem = target + "." + std::to_string(::getpid()) + "-";
    for (int attempt = 0; file_.number < 0; ++attempt) {
      name_ = stem + std::to_string(attempt) + ".part";
      file_.number = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file_.number < 0 && errno != EEXIST) fail(path_, errno);
    }
    struct stat state {};
    if (::stat(target.c_str(), &state) == 0) ::fchmod(file_.number, state.st_mode & 07777);
  }
  FileBeside(const FileBeside&) = delete;
  FileBeside& operator=(const FileBeside&) = delete;
  ~FileBeside() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }

  int descriptor() const { return file_.number; }
  void take_name() {
    if (::fsync(file_.number) != 0) fail(path_, errno);
    if (std::rename(name_.c_str(), target_.c_str()) != 0) fail(path_, errno);
    name_.clear();
  }

 private:
  const std::string& path_;
  const std::string& target_;
  std::string name_;
  Descriptor file_;
};

void write_all(int descriptor, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(path, written < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  const OutputPath to = resolve_output(path_);
  if (to.replaceable) FileBeside(path_, to.target);
}

void OutputFile::write(std::string_view text) const {
  const OutputPath to = resolve_output(path_);
  if (to.replaceable) {
    FileBeside file(path_, to.target);
    write_all(file.descriptor(), text, path_);
    file.take_name();
    return;
  }
  // Appending, so that what a descriptor in /proc has written before stays.
  const Descriptor file(::open(to.target.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC));
  if (file.number < 0) fail(path_, errno);
  write_all(file.number, text, path_);
}

}  // namespace hydra
