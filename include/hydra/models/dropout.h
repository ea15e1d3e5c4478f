#pragma once

#include <ATen/core/Tensor.h>

#include "hydra/model/layer.h"

namespace hydra {

/// Zeroes each element with `probability` and scales the others by 1 / (1 - probability); returns
/// `input` itself outside training or when the probability is 0.
///
/// The mask is a function of the call's identity and the element's place, so that a recomputed
/// forward draws the same one; it is drawn again in backward instead of being kept.
/// Shape: any; fp32 or fp64. Errors: InvalidArgument unless 0 <= probability < 1.
at::Tensor dropout(const at::Tensor& input, double probability, LayerContext& context);

/// Dropout on every tensor that passes.
class DropoutLayer final : public Layer {
 public:
  explicit DropoutLayer(double probability) : probability_(probability) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override;

 private:
  double probability_;
};

}  // namespace hydra
