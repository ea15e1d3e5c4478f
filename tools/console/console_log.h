#pragma once

#include <memory>
#include <string>

#include "hydra/core/log.h"

namespace console {

/// Makes a sink that writes the library's notices to standard error, a line each with the program's
/// name and the level: from `least` on. Thread safety: thread-safe.
std::shared_ptr<hydra::LogSink> make_console_log(const std::string& program, hydra::LogLevel least);

}  // namespace console
