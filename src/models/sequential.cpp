#include "hydra/models/sequential.h"

#include <torch/nn/modules/container/any.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/model/layer.h"
#include "model/exception_text.h"

namespace hydra {
namespace {

class AnyLayer final : public Layer {
 public:
  explicit AnyLayer(torch::nn::AnyModule module) : module_(std::move(module)) {
    register_module("module", module_.ptr());
  }

  Tensors forward(const Tensors& inputs, LayerContext&) override {
    detail::require_one_input(inputs.size(), module_.ptr()->name());
    return {module_.any_forward(inputs[0]).get<at::Tensor>()};
  }

 private:
  torch::nn::AnyModule module_;
};

torch::nn::AnyModule copy_of(const torch::nn::AnyModule& module, const std::string& name) {
  try {
    return module.clone();
  } catch (const std::exception& error) {
    throw InvalidArgument("module \"" + name +
                          "\" of a Sequential cannot be copied: derive it from "
                          "torch::nn::Cloneable (" +
                          exception_text(error) + ")");
  }
}

/// Under which full names each tensor stands, in the order of the layers.
using Places = std::vector<std::pair<const void*, std::vector<std::string>>>;

void add_place(Places& places, const at::Tensor& tensor, const std::string& full_name) {
  const void* identity = tensor.unsafeGetTensorImpl();
  for (auto& [known, names] : places) {
    if (known != identity) continue;
    names.push_back(full_name);
    return;
  }
  places.push_back({identity, {full_name}});
}

std::string layer_of(const std::string& full_name) {
  return full_name.substr(0, full_name.find('.'));
}

void tie_shared_parameters(const torch::nn::Sequential& modules, Model& model) {
  Places parameters;
  Places buffers;
  for (const auto& child : modules->named_children()) {
    for (const auto& entry : child.value()->named_parameters()) {
      add_place(parameters, entry.value(), child.key() + "." + entry.key());
    }
    for (const auto& entry : child.value()->named_buffers()) {
      add_place(buffers, entry.value(), child.key() + "." + entry.key());
    }
  }
  for (const auto& [buffer, names] : buffers) {
    if (names.size() == 1) continue;
    throw InvalidArgument("model \"" + model.name() + "\": the buffer " + names[0] + " is also " +
                          names[1] + ": give each module a buffer of its own");
  }
  for (const auto& [parameter, names] : parameters) {
    if (names.size() == 1) continue;
    for (std::size_t i = 1; i < names.size(); ++i) {
      if (layer_of(names[i - 1]) != layer_of(names[i])) continue;
      throw InvalidArgument("model \"" + model.name() + "\": the parameter " + names[i - 1] +
                            " is also " + names[i] + ": a layer's parameters must be different");
    }
    model.tie(names);
  }
}

}  // namespace

std::shared_ptr<Model> wrap(const std::string& name, const torch::nn::Sequential& modules) {
  auto model = std::make_shared<Model>(name);
  if (modules.is_empty() || modules->is_empty()) {
    throw InvalidArgument("model \"" + name + "\": the Sequential has no modules");
  }
  const auto names = modules->named_children().keys();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto copy = std::make_shared<const torch::nn::AnyModule>(
        copy_of(*(modules->begin() + static_cast<std::ptrdiff_t>(i)), names[i]));
    model->add(names[i], [copy, name = names[i]]() -> std::shared_ptr<Layer> {
      return std::make_shared<AnyLayer>(copy_of(*copy, name));
    });
  }
  tie_shared_parameters(modules, *model);
  return model;
}

}  // namespace hydra
