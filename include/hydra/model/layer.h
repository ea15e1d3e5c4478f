#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "hydra/model/layer_context.h"
#include "hydra/model/layer_factory.h"

namespace hydra {

/// The smallest thing that can be cut off: a module with several tensors in and out.
///
/// Register parameters, buffers and submodules as in any torch::nn::Module. `forward` must compute
/// with its inputs, its own parameters and buffers, and the context alone: randomness from
/// `context.generator()`, never from Torch's process-wide generator. It must not keep tensors
/// between calls. Hydra binds the parameters to device memory before each call.
///
/// The last layer of a model returns one scalar: its micro-batch's share of the mini-batch's loss,
/// that is a sum over its rows divided by `context.loss_denominator()`.
///
/// Thread safety: confined to the thread that runs it; calls never overlap.
class Layer : public torch::nn::Module {
 public:
  virtual Tensors forward(const Tensors& inputs, LayerContext& context) = 0;
};

/// Makes a layer of a module that has `Tensor forward(Tensor)`.
// (Not "Module": the base class's own name would hide the parameter.)
template <typename Wrapped>
class ModuleLayer final : public Layer {
 public:
  explicit ModuleLayer(std::shared_ptr<Wrapped> module)
      : module_(register_module("module", std::move(module))) {}

  Tensors forward(const Tensors& inputs, LayerContext&) override {
    detail::require_one_input(inputs.size(), name());
    return {module_->forward(inputs[0])};
  }

 private:
  std::shared_ptr<Wrapped> module_;
};

/// Returns a factory of ModuleLayers: `module_layer([] { return torch::nn::Linear(4, 4); })`.
/// Parameter names carry no prefix of the adapter's: "layer.weight".
template <typename Make>
LayerFactory module_layer(Make make) {
  return [make = std::move(make)]() -> std::shared_ptr<Layer> {
    auto made = make();
    if constexpr (requires { made.ptr(); }) {  // a torch::nn::ModuleHolder
      using Module = std::remove_reference_t<decltype(*made.ptr())>;
      return std::make_shared<ModuleLayer<Module>>(made.ptr());
    } else {
      using Module = std::remove_reference_t<decltype(*made)>;
      return std::make_shared<ModuleLayer<Module>>(std::move(made));
    }
  };
}

/// Returns a factory of `LayerType(arguments...)`.
template <typename LayerType, typename... Arguments>
LayerFactory layer(Arguments... arguments) {
  return [=]() -> std::shared_ptr<Layer> { return std::make_shared<LayerType>(arguments...); };
}

}  // namespace hydra
