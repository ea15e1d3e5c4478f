#pragma once

#include <cstdint>

#include "hydra/core/bytes.h"
#include "hydra/data/data_source.h"

namespace hydra {

/// Checks what a data source gave, and makes its tensors contiguous.
/// Errors: DataError names the step, the tensor and what is wrong with it.
void validate_batch(Batch& batch, std::int64_t step);

/// Returns rows [begin, end) of a batch: views, with the whole batch's loss denominator.
Batch rows_of(const Batch& batch, std::int64_t begin, std::int64_t end);

/// Returns the bytes of all tensors of a batch.
Bytes batch_bytes(const Batch& batch);

}  // namespace hydra
