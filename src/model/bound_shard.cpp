#include "hydra/model/bound_shard.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <utility>

#include "hydra/core/check.h"
#include "model/exception_text.h"
#include "model/layer_tensors.h"

namespace hydra {
namespace {

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

at::Tensor view(std::byte* data, const std::vector<std::int64_t>& shape, c10::ScalarType type) {
  return at::from_blob(data, shape, at::TensorOptions().dtype(type));
}

/// A parameter of the shard's modules, and the gradient view that it was bound to.
struct BoundParameter {
  at::Tensor tensor;
  const ModelSchema::Parameter* schema = nullptr;
  at::Tensor gradient;
  std::uint32_t version = 0;

  void bind(std::byte* data, std::byte* gradient_data) {
    tensor.set_data(view(data, schema->shape, c10::ScalarType::Float));
    tensor.requires_grad_(!schema->frozen);
    tensor.mutable_grad().reset();
    gradient.reset();
    if (gradient_data == nullptr) return;
    gradient = view(gradient_data, schema->shape, c10::ScalarType::Float);
    version = gradient._version();
    tensor.mutable_grad() = gradient;
  }

  void unbind() {
    tensor.mutable_grad().reset();
    gradient.reset();
    tensor.set_data(at::empty({0}));
  }

  bool touched() const {
    if (!gradient.defined()) return false;
    if (!tensor.grad().is_same(gradient)) {
      throw Unsupported("the gradient of \"" + schema->full_name +
                        "\" was replaced instead of added to: add to parameter.mutable_grad() in "
                        "place");
    }
    return gradient._version() != version;
  }
};

}  // namespace

struct BoundShard::Impl {
  FlatLayout layout;
  std::vector<std::string> names;
  std::vector<std::shared_ptr<Layer>> layers;
  std::vector<BoundParameter> trainable;
  std::vector<BoundParameter> frozen;
  std::vector<BoundParameter> tied;
  struct BoundBuffer {
    at::Tensor tensor;
    ModelSchema::Buffer schema;
  };
  std::vector<BoundBuffer> buffers;
  std::vector<ModelSchema::Layer> schema;  // of the shard's layers; parameters point into it
};

BoundShard::BoundShard(const ModelSchema& schema, FlatLayout layout,
                       std::vector<std::shared_ptr<Layer>> layers)
    : impl_(std::make_unique<Impl>()) {
  HYDRA_CHECK_EQ(index_of(layout.end_layer - layout.first_layer), layers.size());
  impl_->layout = std::move(layout);
  impl_->layers = std::move(layers);
  std::vector<LayerTensors> tensors;
  for (std::size_t i = 0; i < impl_->layers.size(); ++i) {
    impl_->schema.push_back(schema.layers.at(index_of(impl_->layout.first_layer) + i));
    impl_->names.push_back(impl_->schema.back().name);
    tensors.emplace_back(*impl_->layers[i]);
    HYDRA_CHECK_EQ(tensors.back().parameters.size(), impl_->schema.back().parameters.size());
    HYDRA_CHECK_EQ(tensors.back().buffers.size(), impl_->schema.back().buffers.size());
  }
  const auto parameter = [&](std::int64_t layer, std::int64_t index) {
    const std::size_t l = index_of(layer - impl_->layout.first_layer);
    BoundParameter bound;
    bound.tensor = tensors[l].parameters[index_of(index)].second;
    bound.schema = &impl_->schema[l].parameters[index_of(index)];
    return bound;
  };
  for (const auto& e : impl_->layout.trainable) {
    impl_->trainable.push_back(parameter(e.layer, e.parameter));
  }
  for (const auto& e : impl_->layout.frozen)
    impl_->frozen.push_back(parameter(e.layer, e.parameter));
  for (const auto& e : impl_->layout.tied) impl_->tied.push_back(parameter(e.layer, e.parameter));
  for (const auto& e : impl_->layout.buffers) {
    const std::size_t l = index_of(e.layer - impl_->layout.first_layer);
    impl_->buffers.push_back({tensors[l].buffers[index_of(e.parameter)].second,
                              impl_->schema[l].buffers[index_of(e.parameter)]});
  }
  unbind();
}

BoundShard::~BoundShard() { unbind(); }

void BoundShard::bind(const ShardMemory& memory) {
  const FlatLayout& layout = impl_->layout;
  for (std::size_t i = 0; i < impl_->trainable.size(); ++i) {
    const std::size_t offset = layout.trainable[i].offset.size();
    impl_->trainable[i].bind(memory.trainable + offset,
                             memory.gradients != nullptr ? memory.gradients + offset : nullptr);
  }
  for (std::size_t i = 0; i < impl_->frozen.size(); ++i) {
    impl_->frozen[i].bind(memory.frozen + layout.frozen[i].offset.size(), nullptr);
  }
  for (std::size_t i = 0; i < impl_->tied.size(); ++i) {
    impl_->tied[i].bind(memory.tied.at(i),
                        memory.tied_gradients.empty() ? nullptr : memory.tied_gradients[i]);
  }
  for (std::size_t i = 0; i < impl_->buffers.size(); ++i) {
    auto& buffer = impl_->buffers[i];
    buffer.tensor.set_data(view(memory.buffers + layout.buffers[i].offset.size(),
                                buffer.schema.shape, buffer.schema.type));
  }
}

void BoundShard::unbind() noexcept {
  for (auto* parameters : {&impl_->trainable, &impl_->frozen, &impl_->tied}) {
    for (BoundParameter& parameter : *parameters) parameter.unbind();
  }
  for (auto& buffer : impl_->buffers) {
    buffer.tensor.set_data(at::empty({0}, at::TensorOptions().dtype(buffer.schema.type)));
  }
}

Tensors BoundShard::forward(const Tensors& inputs,
                            const std::function<LayerContext(std::int64_t layer_use)>& context_of) {
  Tensors flowing = inputs;
  for (std::size_t i = 0; i < impl_->layers.size(); ++i) {
    LayerContext context = context_of(impl_->layout.first_layer + static_cast<std::int64_t>(i));
    try {
      flowing = impl_->layers[i]->forward(flowing, context);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw LayerError("layer \"" + impl_->names[i] + "\": " + exception_text(error));
    } catch (...) {
      throw LayerError("layer \"" + impl_->names[i] + "\": an exception of unknown type");
    }
  }
  return flowing;
}

std::vector<bool> BoundShard::touched_trainable() const {
  std::vector<bool> touched;
  for (const auto& parameter : impl_->trainable) touched.push_back(parameter.touched());
  return touched;
}

std::vector<bool> BoundShard::touched_tied() const {
  std::vector<bool> touched;
  for (const auto& parameter : impl_->tied) touched.push_back(parameter.touched());
  return touched;
}

const FlatLayout& BoundShard::layout() const noexcept { return impl_->layout; }

void BoundShard::train(bool on) {
  for (const auto& layer : impl_->layers) layer->train(on);
}

void drop_values(const Layer& layer) {
  const LayerTensors tensors(layer);
  for (const auto* list : {&tensors.parameters, &tensors.buffers}) {
    for (const auto& [name, tensor] : *list) {
      tensor.set_data(at::empty({0}, tensor.options()));
    }
  }
}

void store_initial_values(const FlatLayout& layout, std::int64_t layer_index, const Layer& layer,
                          std::byte* trainable, std::byte* frozen, std::byte* buffers,
                          const std::function<std::byte*(std::int64_t tie)>& tied_owner) {
  const LayerTensors tensors(layer);
  const auto store = [](const at::Tensor& tensor, std::byte* target) {
    const at::Tensor dense = tensor.detach().contiguous();
    if (dense.nbytes() > 0) std::memcpy(target, dense.const_data_ptr(), dense.nbytes());
  };
  const auto store_entries = [&](const std::vector<FlatLayout::Entry>& entries, std::byte* base,
                                 const std::vector<std::pair<std::string, at::Tensor>>& values) {
    for (const auto& entry : entries) {
      if (entry.layer != layer_index) continue;
      store(values.at(index_of(entry.parameter)).second, base + entry.offset.size());
    }
  };
  store_entries(layout.trainable, trainable, tensors.parameters);
  store_entries(layout.frozen, frozen, tensors.parameters);
  store_entries(layout.buffers, buffers, tensors.buffers);
  for (const auto& use : layout.tied) {
    if (use.layer != layer_index || use.use != 0) continue;
    store(tensors.parameters.at(index_of(use.parameter)).second, tied_owner(use.tie));
  }
}

}  // namespace hydra
