#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hydra/model/flat_layout.h"
#include "hydra/model/layer_context.h"

namespace hydra {

class Layer;

/// The flat memory that a shard computes with; null where there is none.
struct ShardMemory {
  std::byte* trainable = nullptr;
  std::byte* frozen = nullptr;
  std::byte* buffers = nullptr;
  std::vector<std::byte*> tied;  ///< one per FlatLayout::tied entry

  // Gradients; all null in a forward-only unit.
  std::byte* gradients = nullptr;
  std::vector<std::byte*> tied_gradients;  ///< one per FlatLayout::tied entry; null when frozen
};

/// The modules of one shard, stateless at rest, bound to flat memory while a unit runs.
///
/// Thread safety: confined to one thread at a time. Lifetime: the memory outlives the binding.
class BoundShard {
 public:
  /// `layers` are the shard's modules in order; their own weights are dropped.
  BoundShard(const ModelSchema& schema, FlatLayout layout,
             std::vector<std::shared_ptr<Layer>> layers);
  ~BoundShard();

  /// Points every parameter, gradient and buffer at the memory. Gradients are not zeroed.
  /// Also forgets which parameters were touched.
  void bind(const ShardMemory& memory);
  void unbind() noexcept;

  /// Runs the layers in order, as uses first_layer, first_layer + 1, … of the model.
  /// `context_of(layer_use)` makes each call's context. Errors: LayerError wraps whatever a layer
  /// throws that is not a hydra::Error, with the layer's name.
  Tensors forward(const Tensors& inputs,
                  const std::function<LayerContext(std::int64_t layer_use)>& context_of);

  /// True per FlatLayout::trainable entry when a gradient has been accumulated into it since `bind`
  /// (seen by the version counter of the gradient view).
  std::vector<bool> touched_trainable() const;
  /// The same per FlatLayout::tied entry.
  std::vector<bool> touched_tied() const;

  const FlatLayout& layout() const noexcept;
  void train(bool on);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Frees a made layer's own values, once they have been written elsewhere: its tensors become
/// empty.
void drop_values(const Layer& layer);

/// Writes a made layer's values into flat memory laid out by `layout` (entries of that layer
/// alone). `tied_owner(tie)` gives where a tied parameter's part lies; used by owners (use 0)
/// alone.
void store_initial_values(const FlatLayout& layout, std::int64_t layer_index, const Layer& layer,
                          std::byte* trainable, std::byte* frozen, std::byte* buffers,
                          const std::function<std::byte*(std::int64_t tie)>& tied_owner);

}  // namespace hydra
