#pragma once

#include <cstdlib>

namespace hydra::testing {

/// True when the long sweeps are asked for (scripts/test_long.sh).
inline bool long_sweeps() { return std::getenv("HYDRA_LONG") != nullptr; }

/// Returns how often a random test repeats: `rounds`, or twenty times that when HYDRA_LONG is set.
inline int sweep_rounds(int rounds) { return long_sweeps() ? 20 * rounds : rounds; }

}  // namespace hydra::testing
