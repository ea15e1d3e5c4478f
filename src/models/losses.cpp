#include "hydra/models/losses.h"

#include <utility>

#include "hydra/core/error.h"
#include "loss_layers.h"

namespace hydra {
namespace {

using LossFunction = std::function<at::Tensor(const Tensors&, LayerContext&)>;

class FunctionLoss final : public Layer {
 public:
  explicit FunctionLoss(LossFunction function) : function_(std::move(function)) {}

  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    return {function_(inputs, context)};
  }

 private:
  LossFunction function_;
};

}  // namespace

LayerFactory loss(LossFunction function) {
  if (function == nullptr) throw InvalidArgument("a loss layer needs a function, got an empty one");
  return layer<FunctionLoss>(std::move(function));
}

LayerFactory cross_entropy_loss() { return layer<detail::CrossEntropyLoss>(); }

LayerFactory mean_squared_error_loss() { return layer<detail::MeanSquaredErrorLoss>(); }

}  // namespace hydra
