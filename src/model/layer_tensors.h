#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "hydra/model/layer.h"

namespace hydra {

/// Returns the name without the prefix that the module adapter adds.
inline std::string without_adapter_prefix(const std::string& name) {
  constexpr std::string_view kPrefix = "module.";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

/// A layer's parameters and buffers in registration order: the order that schemas index.
struct LayerTensors {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;

  explicit LayerTensors(const Layer& layer) {
    for (const auto& entry : layer.named_parameters()) {
      parameters.emplace_back(without_adapter_prefix(entry.key()), entry.value());
    }
    for (const auto& entry : layer.named_buffers()) {
      buffers.emplace_back(without_adapter_prefix(entry.key()), entry.value());
    }
  }
};

}  // namespace hydra
