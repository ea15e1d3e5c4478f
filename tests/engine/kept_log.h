#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hydra/core/log.h"
#include "hydra/core/mutex.h"

namespace hydra {

/// A log that a test looks at, but for what every runtime says of its machine first.
class KeptLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view message) noexcept override {
    if (message.starts_with("this process may use")) return;
    MutexLock lock(mutex_);
    lines_.emplace_back(message);
  }
  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ HYDRA_GUARDED_BY(mutex_);
};

}  // namespace hydra
