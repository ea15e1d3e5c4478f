#pragma once

#include <functional>

#include "hydra/model/layer.h"

namespace hydra {

// Legend: B batch (rows of a micro-batch).

/// Makes the last layer of a model from a function of what comes before it: its micro-batch's share
/// of the mini-batch's loss.
///
/// The function returns a scalar, a sum over the micro-batch's rows divided by
/// `context.loss_denominator()`, so that the shares of all micro-batches add up to the mini-batch's
/// loss. It may read side inputs (`context.side("targets")`). Thread safety: the function is called
/// by several threads when jobs share the model. Errors: LayerError for what it throws.
LayerFactory loss(
    std::function<at::Tensor(const Tensors& outputs, LayerContext& context)> function);

/// Cross-entropy of logits against side input "targets"; -100 is ignored.
/// Shape: logits fp32 [B, classes], targets int64 [B].
LayerFactory cross_entropy_loss();

/// Squared errors against side input "targets", each row's mean over its elements.
/// Shape: outputs and targets fp32 [B, …].
LayerFactory mean_squared_error_loss();

}  // namespace hydra
