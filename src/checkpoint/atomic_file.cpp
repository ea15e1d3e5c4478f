#include "checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "hydra/core/error.h"
#include "hydra/core/output_path.h"

namespace hydra::detail {
namespace {

/// Two writers of one path, in this process or another, have a temporary file each.
PositionedFile create_beside(const std::string& path) {
  const std::string stem = path + "." + std::to_string(::getpid()) + "-";
  for (int attempt = 0;; ++attempt) {
    PositionedFile file = PositionedFile::create(stem + std::to_string(attempt) + ".part");
    if (file.is_open()) return file;
  }
}

/// Makes a rename in the folder last through a loss of power.
void flush_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Some network file systems flush no folders, and say EINVAL.
  const bool flushed = descriptor >= 0 && (::fsync(descriptor) == 0 || errno == EINVAL);
  const std::string cause = system_message(errno);
  if (descriptor >= 0) ::close(descriptor);
  if (!flushed) throw SystemError("flushing the folder " + folder + " failed: " + cause);
}

std::string replaceable_target(const std::string& path) {
  const OutputPath to = resolve_output(path);
  if (to.replaceable) return to.target;
  throw SystemError("cannot write " + path + ": it is a device or a pipe, a file is needed");
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path, std::int64_t bytes)
    : path_(replaceable_target(path)), file_(create_beside(path_)) {
  try {
    file_.reserve(bytes);
  } catch (...) {
    ::unlink(file_.path().c_str());
    throw;
  }
}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) ::unlink(file_.path().c_str());
}

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> from) {
  file_.write_at(offset, from);
}

void AtomicFile::commit() {
  file_.flush();
  if (std::rename(file_.path().c_str(), path_.c_str()) != 0) {
    throw SystemError("cannot name " + file_.path() + " " + path_ + ": " + system_message(errno));
  }
  file_ = PositionedFile();
  flush_folder_of(path_);
}

}  // namespace hydra::detail
