#include "hydra/models/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <string>

#include "dropout_seed.h"
#include "hydra/core/error.h"
#include "hydra/models/dropout.h"
#include "loss_layers.h"

namespace hydra {
namespace {

class FullyConnected final : public Layer {
 public:
  // The last layer of an MLP has no activation.
  FullyConnected(std::int64_t in, std::int64_t out, std::optional<Activation> activation,
                 double dropout)
      : activation_(activation), dropout_(dropout) {
    const torch::nn::Linear linear(in, out);
    weight_ = register_parameter("weight", linear->weight.detach());
    bias_ = register_parameter("bias", linear->bias.detach());
  }

  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    detail::require_one_input(inputs.size(), "fully connected layer");
    const at::Tensor linear = at::linear(inputs[0], weight_, bias_);
    if (!activation_) return {linear};
    const at::Tensor active =
        *activation_ == Activation::kGelu ? at::gelu(linear) : at::relu(linear);
    return {dropout(active, dropout_, context)};
  }

 private:
  std::optional<Activation> activation_;
  double dropout_;
  at::Tensor weight_;
  at::Tensor bias_;
};

void validate(const MlpOptions& options) {
  if (options.widths.size() < 2) {
    throw InvalidArgument("mlp: widths has " + std::to_string(options.widths.size()) +
                          " entries: give at least the input's and the output's");
  }
  for (const std::int64_t width : options.widths) {
    if (width < 1) {
      throw InvalidArgument("mlp: a width is " + std::to_string(width) + ": it must be at least 1");
    }
  }
  detail::check_dropout_probability(options.dropout);
}

}  // namespace

std::shared_ptr<Model> make_mlp(const MlpOptions& options) {
  validate(options);
  auto model = std::make_shared<Model>("mlp");
  const std::size_t count = options.widths.size() - 1;
  for (std::size_t i = 0; i < count; ++i) {
    const auto activation =
        i + 1 < count ? std::optional<Activation>(options.activation) : std::nullopt;
    model->add("fc" + std::to_string(i),
               layer<FullyConnected>(options.widths[i], options.widths[i + 1], activation,
                                     options.dropout));
  }
  model->add("loss", options.loss == LossKind::kCrossEntropy
                         ? layer<detail::CrossEntropyLoss>()
                         : layer<detail::MeanSquaredErrorLoss>());
  return model;
}

}  // namespace hydra
