#pragma once

#include <cstdlib>

namespace hydra::testing {

/// Returns how often a random test repeats: `rounds`, or twenty times that when HYDRA_LONG is set.
inline int sweep_rounds(int rounds) {
  return std::getenv("HYDRA_LONG") == nullptr ? rounds : 20 * rounds;
}

}  // namespace hydra::testing
