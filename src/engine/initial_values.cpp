#include "engine/initial_values.h"

#include <cstring>

#include "hydra/core/error.h"

namespace hydra {
namespace {

std::string text_of(c10::IntArrayRef shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace

InitialValues::InitialValues(const Weights* given, const ModelSchema& schema) {
  if (given == nullptr) return;
  const auto known = known_names(schema);
  for (const auto& [name, tensor] : *given) {
    const auto found = known.find(name);
    if (found == known.end()) {
      throw InvalidArgument("initial weight \"" + name + "\" names nothing in the model");
    }
    const Known& place = found->second;
    if (!tensor.defined() || tensor.sizes() != c10::IntArrayRef(*place.shape) ||
        tensor.scalar_type() != place.type) {
      throw InvalidArgument(
          "initial weight \"" + name + "\" is " +
          (tensor.defined() ? text_of(tensor.sizes()) + " of " + c10::toString(tensor.scalar_type())
                            : "undefined") +
          ", the model's is " + text_of(*place.shape) + " of " + c10::toString(place.type));
    }
    const auto [entry, is_new] = given_.emplace(*place.name, &tensor);
    if (!is_new && !same_values(*entry->second, tensor)) {
      throw InvalidArgument("initial weight \"" + name + "\" is given twice, as \"" + *place.name +
                            "\" too, with different values: one parameter has both names");
    }
  }
}

std::map<std::string, InitialValues::Known> InitialValues::known_names(const ModelSchema& schema) {
  std::map<std::string, Known> known;
  for (const auto& layer : schema.layers) {
    for (const auto& parameter : layer.parameters) {
      const std::string* owner = &parameter.full_name;
      if (parameter.tie) owner = &schema.ties[static_cast<std::size_t>(*parameter.tie)].full_name;
      known[parameter.full_name] = {owner, &parameter.shape, c10::ScalarType::Float};
    }
    for (const auto& buffer : layer.buffers) {
      known[buffer.full_name] = {&buffer.full_name, &buffer.shape, buffer.type};
    }
  }
  return known;
}

void InitialValues::apply(const std::string& full_name, std::byte* target) const {
  const auto found = given_.find(full_name);
  if (found == given_.end()) return;
  const at::Tensor contiguous = found->second->contiguous();
  std::memcpy(target, contiguous.const_data_ptr(), contiguous.nbytes());
}

}  // namespace hydra
