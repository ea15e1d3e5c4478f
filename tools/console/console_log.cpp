#include "console/console_log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace console {
namespace {

spdlog::level::level_enum level_of(hydra::LogLevel level) {
  switch (level) {
    case hydra::LogLevel::kDebug:
      return spdlog::level::debug;
    case hydra::LogLevel::kInfo:
      return spdlog::level::info;
    case hydra::LogLevel::kWarning:
      return spdlog::level::warn;
    case hydra::LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

class ConsoleLog final : public hydra::LogSink {
 public:
  ConsoleLog(const std::string& program, hydra::LogLevel least)
      : logger_(program, std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_pattern("%n: %l: %v");
    logger_.set_level(level_of(least));
    // A standard error that cannot be written to leaves nobody to tell.
    logger_.set_error_handler([](const std::string&) {});
  }

  void log(hydra::LogLevel level, std::string_view message) noexcept override {
    try {
      logger_.log(level_of(level), "{}", message);
    } catch (...) {  // as above
    }
  }

 private:
  spdlog::logger logger_;
};

}  // namespace

std::shared_ptr<hydra::LogSink> make_console_log(const std::string& program,
                                                 hydra::LogLevel least) {
  return std::make_shared<ConsoleLog>(program, least);
}

}  // namespace console
