#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace hydra {

/// Returns what an exception says; of one of Torch's, without the frames of its stack, which are
/// for Torch's own developers.
inline std::string exception_text(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace hydra
