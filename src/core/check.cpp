#include "hydra/core/check.h"

namespace hydra::detail {

void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": " + condition +
                      " does not hold: " + message);
}

}  // namespace hydra::detail
