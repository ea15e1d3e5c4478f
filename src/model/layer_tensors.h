#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hydra/model/layer.h"

namespace hydra {

/// A layer's parameters and buffers in registration order: the order that schemas index.
struct LayerTensors {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;

  explicit LayerTensors(const Layer& layer) {
    const std::size_t prefix = adapter_prefix(layer).size();
    for (const auto& entry : layer.named_parameters()) {
      parameters.emplace_back(entry.key().substr(prefix), entry.value());
    }
    for (const auto& entry : layer.named_buffers()) {
      buffers.emplace_back(entry.key().substr(prefix), entry.value());
    }
  }

 private:
  /// What the module adapter puts before every name. A layer that has more than the one module is
  /// the user's own, and keeps its names.
  static std::string_view adapter_prefix(const Layer& layer) {
    const auto children = layer.named_children();
    const bool adapted = children.size() == 1 && children.contains("module") &&
                         layer.named_parameters(/*recurse=*/false).is_empty() &&
                         layer.named_buffers(/*recurse=*/false).is_empty();
    return adapted ? "module." : "";
  }
};

}  // namespace hydra
