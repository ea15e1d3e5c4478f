#pragma once

#include <sstream>
#include <string>

#include "hydra/core/error.h"

namespace hydra::detail {

/// Throws InternalError with the place, the condition and the message.
[[noreturn]] void fail_check(const char* file, int line, const char* condition,
                             const std::string& message);

template <typename A, typename B>
std::string both_values(const A& a, const B& b) {
  std::ostringstream out;
  out << a << " against " << b;
  return out.str();
}

}  // namespace hydra::detail

/// Throws InternalError unless `condition` holds. For programmer errors alone.
#define HYDRA_CHECK(condition, message)                                                       \
  do {                                                                                        \
    if (!(condition)) ::hydra::detail::fail_check(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

/// The same for an equality; the message shows both values.
#define HYDRA_CHECK_EQ(a, b)                                               \
  do {                                                                     \
    if (!((a) == (b)))                                                     \
      ::hydra::detail::fail_check(__FILE__, __LINE__, #a " == " #b,        \
                                  ::hydra::detail::both_values((a), (b))); \
  } while (false)
