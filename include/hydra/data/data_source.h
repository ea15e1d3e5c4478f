#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hydra {

/// One mini-batch in host memory.
///
/// Shape: every tensor of `inputs` and `side` has `rows` as its first dimension, so that a
/// micro-batch is a range of rows.
struct Batch {
  std::int64_t rows = 0;
  std::vector<at::Tensor> inputs{};                        ///< what the first layer gets
  std::vector<std::pair<std::string, at::Tensor>> side{};  ///< by name, for any layer: "targets"
  /// What loss layers divide their sums by: the number of targets in the whole mini-batch.
  double loss_denominator = 1.0;
  /// Tokens (or rows) in it, for the tokens-per-second figure.
  std::int64_t tokens = 0;
};

/// The user's contract for data: a step number gives that step's mini-batch.
///
/// `batch(step)` must be a function of the step (and of what the source was made with) alone, so
/// that a run can resume at any step. Each job has its own loader thread, which calls it with
/// rising steps, several steps ahead; a source that is given to several jobs is called by several
/// threads at once and must be thread-safe. Shape: the first batch's shapes are the job's largest:
/// rows and trailing sizes of later batches may be smaller, never larger. Errors: whatever it
/// throws ends its job as failed with that reason; other jobs go on. A source that has no batch for
/// a step throws DataError.
class DataSource {
 public:
  virtual ~DataSource() = default;
  virtual Batch batch(std::int64_t step) = 0;
};

}  // namespace hydra
