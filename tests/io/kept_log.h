#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "hydra/core/log.h"

namespace hydra::testing {

/// Keeps every notice. Thread safety: thread-safe.
class KeptLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view message) noexcept override {
    std::lock_guard lock(mutex_);
    lines_.emplace_back(message);
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  /// The lines that hold `part`.
  std::vector<std::string> lines_with(std::string_view part) const {
    std::vector<std::string> found;
    for (const std::string& line : lines()) {
      if (line.find(part) != std::string::npos) found.push_back(line);
    }
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace hydra::testing
