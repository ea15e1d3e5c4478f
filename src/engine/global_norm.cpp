#include "engine/global_norm.h"

#include <cmath>

namespace hydra {

GradientSquares::GradientSquares(const ModelSchema& schema)
    : schema_(&schema), tie_sums_(schema.ties.size(), 0.0) {
  for (const auto& layer : schema.layers) sums_.emplace_back(layer.parameters.size(), 0.0);
}

void GradientSquares::set(const FlatLayout& layout, const std::vector<double>& sums) {
  for (std::size_t i = 0; i < layout.trainable.size(); ++i) {
    const auto& entry = layout.trainable[i];
    sums_[static_cast<std::size_t>(entry.layer)][static_cast<std::size_t>(entry.parameter)] =
        sums[i];
  }
}

void GradientSquares::set_tie(std::int64_t tie, double sum) {
  tie_sums_[static_cast<std::size_t>(tie)] = sum;
}

double GradientSquares::norm() const {
  double total = 0;
  for (std::size_t l = 0; l < schema_->layers.size(); ++l) {
    const auto& parameters = schema_->layers[l].parameters;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].frozen) continue;
      if (!parameters[p].tie) {
        total += sums_[l][p];
      } else if (parameters[p].tie_use == 0) {
        total += tie_sums_[static_cast<std::size_t>(*parameters[p].tie)];
      }
    }
  }
  return std::sqrt(total);
}

}  // namespace hydra
