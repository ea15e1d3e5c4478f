#include "hydra/core/output_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <tuple>

#include "hydra/core/error.h"

namespace hydra {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as the kernel

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw SystemError("cannot write " + path + ": " + why);
}

std::string folder_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// A name in /proc (and in /dev/fd, which leads there) is that of an open file, which has to be used
// as it is.
bool leads_through_proc(const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::canonical(folder_of(path), error);
  return !error && folder.string().starts_with("/proc/");
}

/// The path after each link of its last component, also where the last one leads to nothing.
std::optional<std::string> end_of_links(std::string path) {
  for (int links = 0; links <= kMostLinks; ++links) {
    std::error_code error;
    if (leads_through_proc(path) || !fs::is_symlink(fs::symlink_status(path, error))) return path;
    const fs::path next = fs::read_symlink(path, error);
    if (error) return path;
    path = (next.is_absolute() ? next : fs::path(folder_of(path)) / next).string();
  }
  return std::nullopt;
}

/// What makes a file itself; the name is empty where the file is there.
using Identity = std::tuple<dev_t, ino_t, std::string>;

std::optional<Identity> identity_of(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) == 0) {
    if (!S_ISREG(state.st_mode) && !S_ISDIR(state.st_mode)) return std::nullopt;
    return Identity{state.st_dev, state.st_ino, ""};
  }
  const auto end = end_of_links(path);
  if (!end || ::stat(folder_of(*end).c_str(), &state) != 0) return std::nullopt;
  return Identity{state.st_dev, state.st_ino, fs::path(*end).filename().string()};
}

}  // namespace

OutputPath resolve_output(const std::string& path) {
  if (path.empty()) throw InvalidArgument("an output's path is empty");
  const auto end = end_of_links(path);
  if (!end) refuse(path, "its symbolic links go in a circle");
  if (leads_through_proc(*end)) return {path, false};
  struct stat state {};
  if (::stat(end->c_str(), &state) == 0) {
    if (S_ISDIR(state.st_mode)) refuse(path, "it is a directory: name a file in it");
    if (::access(end->c_str(), W_OK) != 0) {
      refuse(path, system_message(errno) + ": name a file that may be written to");
    }
    if (!S_ISREG(state.st_mode)) return {path, false};
  } else if (errno != ENOENT) {
    refuse(path, system_message(errno));
  }
  const std::string folder = folder_of(*end);
  if (::stat(folder.c_str(), &state) != 0) {
    refuse(path, "the folder " + folder + " cannot be used: " + system_message(errno) +
                     ": make it, or name another");
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    refuse(path, "the folder " + folder + " cannot be written to: " + system_message(errno));
  }
  return {*end, true};
}

bool name_one_file(const std::string& a, const std::string& b) {
  const auto first = identity_of(a);
  return first && first == identity_of(b);
}

}  // namespace hydra
