#include "loss_layers.h"

#include <torch/nn/functional/loss.h>

namespace hydra::detail {

namespace F = torch::nn::functional;

Tensors CrossEntropyLoss::forward(const Tensors& inputs, LayerContext& context) {
  require_one_input(inputs.size(), "cross-entropy loss");
  const at::Tensor sum =
      F::cross_entropy(inputs[0], context.side("targets"),
                       F::CrossEntropyFuncOptions().ignore_index(-100).reduction(torch::kSum));
  return {sum / context.loss_denominator()};
}

Tensors MeanSquaredErrorLoss::forward(const Tensors& inputs, LayerContext& context) {
  require_one_input(inputs.size(), "mean squared error loss");
  const at::Tensor sum = F::mse_loss(inputs[0], context.side("targets"),
                                     F::MSELossFuncOptions().reduction(torch::kSum));
  const double row_elements =
      static_cast<double>(inputs[0].numel()) / static_cast<double>(inputs[0].size(0));
  return {sum / (context.loss_denominator() * row_elements)};
}

}  // namespace hydra::detail
