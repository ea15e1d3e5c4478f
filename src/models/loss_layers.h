#pragma once

#include "hydra/model/layer.h"

namespace hydra::detail {

/// Cross-entropy of logits [B, classes] against side input "targets" [B]; -100 is ignored.
class CrossEntropyLoss final : public Layer {
 public:
  Tensors forward(const Tensors& inputs, LayerContext& context) override;
};

/// Squared errors against side input "targets": each row's mean over its elements.
class MeanSquaredErrorLoss final : public Layer {
 public:
  Tensors forward(const Tensors& inputs, LayerContext& context) override;
};

}  // namespace hydra::detail
