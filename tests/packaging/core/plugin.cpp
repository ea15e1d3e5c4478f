// A shared library that uses Hydra inside: it exports its own function alone.

#include <cstdint>

#include "hydra/core/bytes.h"

extern "C" __attribute__((visibility("default"))) std::int64_t plugin_bytes(const char* text) {
  return hydra::parse_bytes(text).count();
}
