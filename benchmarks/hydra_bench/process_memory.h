#pragma once

#include <fstream>
#include <string>

#include "hydra/core/bytes.h"

namespace bench {

/// Returns a line of /proc/self/status in bytes: "VmRSS:", what the process holds now, "VmHWM:",
/// the most it has held.
inline hydra::Bytes process_memory(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == key && file >> kib) return hydra::Bytes(kib * 1024);
  }
  return hydra::Bytes(0);
}

/// Lets "VmHWM:" count from what the process holds now.
inline void reset_process_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace bench
