#pragma once

#include "hydra/core/mutex.h"

namespace hydra {

/// Held by whoever seeds Torch's process-wide generator, or watches whether a layer draws from it.
Mutex& process_generator_mutex();

}  // namespace hydra
