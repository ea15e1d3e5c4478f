#include "hydra/core/machine.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace hydra {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

/// The first line of a file as words; none when it cannot be read.
std::vector<std::string> words_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  std::istringstream words(line);
  std::vector<std::string> found;
  for (std::string word; words >> word;) found.push_back(word);
  return found;
}

/// The rest of the line of a file that begins with `key`.
std::string value_of(const std::filesystem::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(key)) {
      const auto begin = line.find_first_not_of(" \t", key.size());
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

/// A hierarchy of cgroups as it is mounted, and where in it this process is.
struct Hierarchy {
  bool second_version = false;
  std::vector<std::string> controllers;    // of version 1
  std::vector<std::filesystem::path> own;  // this process's directory, and all above it
};

/// Mount points escape blanks as \040.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

/// Where the process is in a hierarchy, by /proc/self/cgroup.
std::optional<std::string> own_path(const std::string& root, const Hierarchy& hierarchy) {
  std::ifstream stream(root + "/proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool same = hierarchy.second_version
                          ? names.empty()
                          : !names.empty() && contains(hierarchy.controllers, split(names, ',')[0]);
    if (same) return line.substr(second + 1);
  }
  return std::nullopt;
}

/// A container may see a part of the hierarchy only: then `top` is what is mounted of it, and the
/// path of a process that is not below it means nothing there.
std::vector<std::filesystem::path> directories(const std::filesystem::path& mount,
                                               const std::string& top, const std::string& path) {
  std::string below = path;
  if (top != "/") below = path.starts_with(top) ? path.substr(top.size()) : "";
  std::vector<std::filesystem::path> found{mount};
  for (const std::string& name : split(below, '/')) {
    if (name == "..") return {mount};
    if (!name.empty()) found.push_back(found.back() / name);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

/// Reads /proc/self/mountinfo: "… root mount-point options [tags] - type source super-options".
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream stream(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(stream, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> place = split(line.substr(0, dash), ' ');
    const std::vector<std::string> kind = split(line.substr(dash + 3), ' ');
    if (place.size() < 5 || kind.size() < 3) continue;
    if (kind[0] != "cgroup" && kind[0] != "cgroup2") continue;
    Hierarchy hierarchy;
    hierarchy.second_version = kind[0] == "cgroup2";
    hierarchy.controllers = split(kind[2], ',');
    if (const auto path = own_path(root, hierarchy)) {
      hierarchy.own = directories(root + unescaped(place[4]), unescaped(place[3]), *path);
      found.push_back(std::move(hierarchy));
    }
  }
  return found;
}

class LimitReader {
 public:
  explicit LimitReader(const std::string& root) : root_(root) {}

  MachineLimits read() {
    take_physical_memory();
    take_affinity();
    for (const Hierarchy& hierarchy : hierarchies(root_)) {
      for (const auto& directory : hierarchy.own) {
        if (hierarchy.second_version) {
          take_memory(directory / "memory.max");
          take_memory(directory / "memory.high");
          take_quota(directory / "cpu.max", words_of(directory / "cpu.max"));
          continue;
        }
        if (contains(hierarchy.controllers, "memory")) {
          take_memory(directory / "memory.limit_in_bytes");
        }
        if (contains(hierarchy.controllers, "cpu")) take_old_quota(directory);
      }
    }
    return limits_;
  }

 private:
  void take_physical_memory() {
    const auto kib = number(value_of(root_ + "/proc/meminfo", "MemTotal:"));
    limits_.memory =
        kib ? Bytes(*kib << 10)
            : Bytes(static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
    limits_.memory_source = "physical memory";
  }

  // "0-2,5" are four.
  void take_affinity() {
    std::int64_t cores = 0;
    const std::string list = value_of(root_ + "/proc/thread-self/status", "Cpus_allowed_list:");
    for (const std::string& range : split(list, ',')) {
      const auto dash = range.find('-');
      const auto first = number(range);
      const auto last = dash == std::string::npos ? first : number(range.substr(dash + 1));
      if (first && last && *last >= *first) cores += *last - *first + 1;
    }
    if (cores == 0) cores = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
    limits_.cores = static_cast<int>(cores);
    limits_.cores_source = "affinity";
  }

  // "max" is no number and no limit.
  void take_memory(const std::filesystem::path& file) {
    const auto words = words_of(file);
    const auto limit = words.empty() ? std::nullopt : number(words[0]);
    if (!limit || *limit < 0 || Bytes(*limit) >= limits_.memory) return;
    limits_.memory = Bytes(*limit);
    limits_.memory_source = "limit in " + file.string();
  }

  // Time in a period, and the period; rounded down, since a thread too many is stopped for a part
  // of each period with all that waits for it.
  void take_quota(const std::filesystem::path& file, const std::vector<std::string>& words) {
    if (words.size() < 2) return;
    const auto quota = number(words[0]);
    const auto period = number(words[1]);
    if (!quota || !period || *quota <= 0 || *period <= 0) return;
    const std::int64_t cores = std::max<std::int64_t>(1, *quota / *period);
    if (cores >= limits_.cores) return;
    limits_.cores = static_cast<int>(cores);
    limits_.cores_source = "quota in " + file.string();
  }

  void take_old_quota(const std::filesystem::path& directory) {
    std::vector<std::string> words = words_of(directory / "cpu.cfs_quota_us");
    const std::vector<std::string> period = words_of(directory / "cpu.cfs_period_us");
    words.insert(words.end(), period.begin(), period.end());
    take_quota(directory / "cpu.cfs_quota_us", words);
  }

  const std::string root_;
  MachineLimits limits_;
};

}  // namespace

MachineLimits read_machine_limits(const std::string& root) { return LimitReader(root).read(); }

std::string to_string(const MachineLimits& limits) {
  return "this process may use " + to_string(limits.memory) + " of memory (" +
         limits.memory_source + ") and " + std::to_string(limits.cores) +
         (limits.cores == 1 ? " core (" : " cores (") + limits.cores_source + ")";
}

}  // namespace hydra
