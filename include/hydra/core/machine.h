#pragma once

#include <string>

#include "hydra/core/bytes.h"

namespace hydra {

/// What this process may use of its machine, and what says so, for people.
struct MachineLimits {
  Bytes memory;               ///< the least of physical memory and the limits of its cgroups
  std::string memory_source;  ///< "physical memory", or the file with the limit
  int cores = 1;              ///< the least of affinity and the quotas of its cgroups, rounded down
  std::string cores_source;   ///< "affinity", or the file with the quota
};

/// Reads the limits that hold now: physical memory and affinity, and those of every cgroup (version
/// 1 and 2) that the process is in, up to the root that it can see. What cannot be read or parsed
/// is no limit. `root` is put before every path; for tests.
/// Thread safety: thread-safe; affinity is the calling thread's.
MachineLimits read_machine_limits(const std::string& root = "");

/// Writes them in one line.
std::string to_string(const MachineLimits& limits);

}  // namespace hydra
