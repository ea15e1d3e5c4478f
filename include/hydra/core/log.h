#pragma once

#include <string_view>

namespace hydra {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Receives the library's notices; the library itself never prints.
/// Thread safety: thread-safe.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void log(LogLevel level, std::string_view message) noexcept = 0;
};

/// Drops every notice.
class NullLogSink final : public LogSink {
 public:
  void log(LogLevel, std::string_view) noexcept override {}
};

}  // namespace hydra
