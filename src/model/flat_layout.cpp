#include "hydra/model/flat_layout.h"

namespace hydra {
namespace {

// A cache line, and what vector units like; the bits do not depend on it.
constexpr std::int64_t kAlignment = 64;

Bytes float_bytes(std::int64_t elements) {
  return Bytes(elements * static_cast<std::int64_t>(sizeof(float))).rounded_up(kAlignment);
}

}  // namespace

FlatLayout make_layout(const ModelSchema& schema, std::int64_t first_layer,
                       std::int64_t end_layer) {
  FlatLayout layout;
  layout.first_layer = first_layer;
  layout.end_layer = end_layer;
  for (std::int64_t l = first_layer; l < end_layer; ++l) {
    const auto& layer = schema.layers.at(static_cast<std::size_t>(l));
    for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
      const auto& parameter = layer.parameters[p];
      const auto index = static_cast<std::int64_t>(p);
      if (parameter.tie) {
        layout.tied.push_back({l, index, *parameter.tie, parameter.tie_use});
        continue;
      }
      auto& entries = parameter.frozen ? layout.frozen : layout.trainable;
      Bytes& bytes = parameter.frozen ? layout.frozen_bytes : layout.trainable_bytes;
      entries.push_back({l, index, bytes, parameter.elements});
      bytes += float_bytes(parameter.elements);
    }
    for (std::size_t b = 0; b < layer.buffers.size(); ++b) {
      layout.buffers.push_back(
          {l, static_cast<std::int64_t>(b), layout.buffer_bytes, layer.buffers[b].elements});
      layout.buffer_bytes += layer.buffers[b].bytes.rounded_up(kAlignment);
    }
  }
  return layout;
}

Bytes tie_bytes(const ModelSchema& schema, std::int64_t tie) {
  return float_bytes(schema.ties.at(static_cast<std::size_t>(tie)).elements);
}

}  // namespace hydra
