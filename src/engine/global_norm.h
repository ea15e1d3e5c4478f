#pragma once

#include <vector>

#include "hydra/model/flat_layout.h"
#include "hydra/model/schema.h"

namespace hydra {

/// The squares of a step's gradients, one sum per parameter, so that the global norm is the same
/// however the model is cut. Untouched parameters count as zero.
class GradientSquares {
 public:
  explicit GradientSquares(const ModelSchema& schema);

  /// Takes in the sums of one shard, one per FlatLayout::trainable entry.
  void set(const FlatLayout& layout, const std::vector<double>& sums);
  void set_tie(std::int64_t tie, double sum);

  /// Adds in model order; a tied parameter stands at its owner's place.
  double norm() const;

 private:
  const ModelSchema* schema_;
  std::vector<std::vector<double>> sums_;  ///< by layer and parameter
  std::vector<double> tie_sums_;
};

}  // namespace hydra
