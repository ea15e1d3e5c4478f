#pragma once

#include "hydra/hydra.h"

namespace finetune {

/// Shows the progress of all jobs of the runtime until they have ended: bars on a terminal, lines
/// elsewhere, nothing when `quiet`. Once a stop signal has come, asks them to end at their next
/// step.
void watch(hydra::Runtime& runtime, bool quiet);

}  // namespace finetune
