#pragma once

#include <vector>

#include "hydra/hydra.h"

namespace finetune {

/// Shows the jobs' progress until all have ended: bars on a terminal, lines elsewhere.
void watch(const std::vector<hydra::JobHandle>& jobs, bool quiet);

}  // namespace finetune
