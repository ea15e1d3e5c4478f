#include "hydra/model/pilot.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "hydra/core/error.h"
#include "hydra/device/current_device.h"
#include "hydra/model/bound_shard.h"
#include "model/autograd_queue.h"
#include "model/exception_text.h"
#include "model/layer_tensors.h"
#include "model/process_generator.h"

namespace hydra {
namespace {

// A call this quick is run again, so that its time is not that of first touches.
constexpr Nanoseconds kQuick = std::chrono::milliseconds(50);

Nanoseconds since(std::chrono::steady_clock::time_point start) {
  return std::chrono::steady_clock::now() - start;
}

/// The process-wide generator's state, kept off the device's budget.
at::Tensor process_generator_state() {
  const ScopedCurrentDevice off_device(nullptr);
  return at::detail::getDefaultCPUGenerator().get_state();
}

bool draws_from(const at::Tensor& before, const at::Tensor& after) {
  return !at::equal(before, after);
}

/// What an operation does to the device's memory.
class MemoryWatch {
 public:
  explicit MemoryWatch(Device& device) : device_(device), start_(device.stats().in_use) {
    device_.reset_peak();
  }
  Bytes held() const { return device_.stats().in_use - start_; }
  Bytes peak() const { return device_.stats().peak_in_use - start_; }

 private:
  Device& device_;
  Bytes start_;
};

Bytes device_bytes(const Tensors& tensors, const Device& device, bool differentiable_only) {
  Bytes total;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || (differentiable_only && !tensor.requires_grad())) continue;
    total += device.allocation_size(Bytes(static_cast<std::int64_t>(tensor.nbytes())));
  }
  return total;
}

/// The name of a module in the layer that is known to draw from the process-wide generator.
std::string dropout_module(const Layer& layer) {
  for (const auto& module : layer.modules(/*include_self=*/false)) {
    if (module->name().find("ropout") != std::string::npos) return module->name();
  }
  return "torch::nn::Dropout";
}

/// One layer on the device, alone.
class PilotLayer {
 public:
  PilotLayer(const Model& model, const ModelSchema& schema, std::int64_t index, std::uint64_t seed,
             Device& device)
      : layout_(make_layout(schema, index, index + 1)) {
    const std::string& name = schema.layers[static_cast<std::size_t>(index)].name;
    require_room(schema, name, device);
    {
      const ScopedCurrentDevice off_device(nullptr);
      layer_ = make_layer(model, index, seed);
    }
    trainable_ = zeroed(device, layout_.trainable_bytes);
    gradients_ = zeroed(device, layout_.trainable_bytes);
    frozen_ = zeroed(device, layout_.frozen_bytes);
    buffers_ = zeroed(device, layout_.buffer_bytes);
    memory_.trainable = trainable_.data();
    memory_.gradients = gradients_.data();
    memory_.frozen = frozen_.data();
    memory_.buffers = buffers_.data();
    for (const auto& use : layout_.tied) {
      const Bytes size = tie_bytes(schema, use.tie);
      tied_.push_back(zeroed(device, size));
      memory_.tied.push_back(tied_.back().data());
      tied_gradients_.push_back(schema.ties[static_cast<std::size_t>(use.tie)].frozen
                                    ? DeviceBuffer()
                                    : zeroed(device, size));
      memory_.tied_gradients.push_back(tied_gradients_.back().data());
    }
    store_initial_values(layout_, index, *layer_, memory_.trainable, memory_.frozen,
                         memory_.buffers, [&](std::int64_t tie) { return tied_at(tie); });
    const ScopedCurrentDevice off_device(nullptr);
    bound_ = std::make_unique<BoundShard>(schema, layout_, std::vector{layer_});
    bound_->bind(memory_);
    bound_->train(true);
    watch_for_sparse_gradients();
  }

  ~PilotLayer() = default;
  PilotLayer(const PilotLayer&) = delete;
  PilotLayer& operator=(const PilotLayer&) = delete;

  BoundShard& bound() { return *bound_; }
  const Layer& layer() const { return *layer_; }
  const FlatLayout& layout() const { return layout_; }

  /// Throws Unsupported unless the backward pass has left dense gradients in their places.
  void require_dense_gradients(const ModelSchema& schema) const {
    bound_->touched_trainable();  // throws when a gradient was replaced
    bound_->touched_tied();
    if (sparse_->empty()) return;
    throw Unsupported(
        "parameter \"" + schema.layers[static_cast<std::size_t>(layout_.first_layer)].name + "." +
        *sparse_ + "\" gets a sparse gradient: make it dense (sparse(false) of an embedding)");
  }

 private:
  // Autograd would add a sparse gradient into the dense accumulator without a word.
  void watch_for_sparse_gradients() {
    for (const auto& [name, tensor] : LayerTensors(*layer_).parameters) {
      if (!tensor.requires_grad()) continue;
      tensor.register_hook([name = name, sparse = sparse_](const at::Tensor& gradient) {
        if (gradient.defined() && gradient.layout() != at::kStrided) *sparse = name;
      });
    }
  }

  static DeviceBuffer zeroed(Device& device, Bytes size) {
    if (size == Bytes(0)) return {};
    DeviceBuffer buffer(device, size);
    std::memset(buffer.data(), 0, size.size());
    return buffer;
  }

  std::byte* tied_at(std::int64_t tie) {
    for (std::size_t i = 0; i < layout_.tied.size(); ++i) {
      if (layout_.tied[i].tie == tie) return memory_.tied[i];
    }
    return nullptr;
  }

  void require_room(const ModelSchema& schema, const std::string& name,
                    const Device& device) const {
    Bytes needed = layout_.trainable_bytes * 2 + layout_.frozen_bytes + layout_.buffer_bytes;
    for (const auto& use : layout_.tied) {
      const bool frozen = schema.ties[static_cast<std::size_t>(use.tie)].frozen;
      needed += tie_bytes(schema, use.tie) * (frozen ? 1 : 2);
    }
    if (needed > device.budget()) {
      throw DoesNotFit("layer \"" + name + "\" needs " + to_string(needed) +
                       " for its parameters and gradients alone, device " + device.name() +
                       " has " + to_string(device.budget()) +
                       ": raise the device's memory or split the layer");
    }
  }

  FlatLayout layout_;
  ShardMemory memory_;
  DeviceBuffer trainable_;
  DeviceBuffer gradients_;
  DeviceBuffer frozen_;
  DeviceBuffer buffers_;
  std::vector<DeviceBuffer> tied_;
  std::vector<DeviceBuffer> tied_gradients_;
  std::shared_ptr<Layer> layer_;
  std::unique_ptr<BoundShard> bound_;
  std::shared_ptr<std::string> sparse_ = std::make_shared<std::string>();
};

/// The pilot's way through the model.
class PilotRun {
 public:
  PilotRun(const Model& model, const ModelSchema& schema, const Tensors& inputs,
           const SideInputs& side, double loss_denominator, std::uint64_t seed, Device& device)
      : model_(model),
        schema_(schema),
        side_on_device_(copy_side(side)),
        loss_denominator_(loss_denominator),
        seed_(seed),
        device_(device) {
    for (const at::Tensor& input : inputs) flowing_.push_back(copy_to_device(input));
    differentiable_.assign(inputs.size(), false);
  }

  void measure(std::int64_t index, PilotResult& result) {
    const bool last = index + 1 == static_cast<std::int64_t>(schema_.layers.size());
    PilotLayer layer(model_, schema_, index, seed_, device_);
    LayerMeasure measure;
    measure.name = schema_.layers[static_cast<std::size_t>(index)].name;
    measure.trainable = layer.layout().trainable_bytes;
    measure.frozen = layer.layout().frozen_bytes;
    measure.buffers = layer.layout().buffer_bytes;
    for (const auto& use : layer.layout().tied) measure.ties.push_back(use.tie);
    measure.input = device_bytes(flowing_, device_, false);
    measure_unrecorded(layer, measure);
    result.outputs.push_back(measure_recorded(layer, last, measure));
    differentiable_.clear();
    for (const BoundaryTensor& output : result.outputs.back()) {
      differentiable_.push_back(output.differentiable);
    }
    result.layers.push_back(std::move(measure));
  }

 private:
  static at::Tensor copy_to_device(const at::Tensor& tensor) {
    at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
    copy.copy_(tensor);
    return copy;
  }

  static SideInputs copy_side(const SideInputs& side) {
    SideInputs copies;
    for (const auto& [name, tensor] : side) copies.emplace_back(name, copy_to_device(tensor));
    return copies;
  }

  Tensors run(PilotLayer& layer) {
    return layer.bound().forward(flowing_, [&](std::int64_t use) {
      return LayerContext({seed_, 0, 0, use}, Mode::kTrain, loss_denominator_, side_on_device_);
    });
  }

  void measure_unrecorded(PilotLayer& layer, LayerMeasure& measure) {
    at::NoGradGuard not_recording;
    for (int attempt = 0; attempt < 2; ++attempt) {
      const MutexLock nobody_seeds(process_generator_mutex());
      const at::Tensor before = process_generator_state();
      const MemoryWatch watch(device_);
      const auto start = std::chrono::steady_clock::now();
      Tensors outputs = run(layer);
      measure.forward = since(start);
      measure.forward_peak = watch.peak();
      measure.output = device_bytes(outputs, device_, false);
      outputs.clear();
      if (watch.held() != Bytes(0)) refuse_state(measure.name, watch.held());
      // A user's thread may have drawn meanwhile; twice in a row is the layer itself.
      const bool drew = draws_from(before, process_generator_state());
      if (drew && attempt == 1) refuse_random(measure.name, layer.layer());
      if (!drew && measure.forward > kQuick) return;
    }
  }

  std::vector<BoundaryTensor> measure_recorded(PilotLayer& layer, bool last,
                                               LayerMeasure& measure) {
    at::AutoGradMode recording(true);
    std::vector<BoundaryTensor> borders;
    Tensors kept;
    for (int attempt = 0; attempt < 2; ++attempt) {
      kept.clear();
      prepare_inputs();
      const MemoryWatch watch(device_);
      auto start = std::chrono::steady_clock::now();
      Tensors outputs = run(layer);
      measure.recorded = since(start);
      measure.recorded_peak = watch.peak();
      measure.graph = watch.held();
      measure.output_gradient = device_bytes(outputs, device_, true);
      if (last) require_loss(outputs, measure.name);
      borders = describe(outputs);
      start = std::chrono::steady_clock::now();
      kept = run_backward(outputs);
      measure.backward = since(start);
      measure.backward_peak = watch.peak();
      layer.require_dense_gradients(schema_);
      for (at::Tensor& input : flowing_) {
        if (input.defined()) input.mutable_grad().reset();
      }
      if (measure.recorded + measure.backward > kQuick) break;
    }
    flowing_ = std::move(kept);
    return borders;
  }

  void prepare_inputs() {
    for (std::size_t i = 0; i < flowing_.size(); ++i) {
      if (differentiable_[i]) flowing_[i] = flowing_[i].detach().requires_grad_(true);
    }
  }

  /// Back-propagates ones and returns the outputs without their graph.
  static Tensors run_backward(Tensors& outputs) {
    Tensors detached;
    Tensors roots;
    Tensors seeds;
    for (at::Tensor& output : outputs) {
      detached.push_back(output.defined() ? output.detach() : output);
      if (!output.defined() || !output.requires_grad()) continue;
      seeds.push_back(at::ones_like(output));
      roots.push_back(std::move(output));
    }
    outputs.clear();
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
    return detached;
  }

  static std::vector<BoundaryTensor> describe(const Tensors& outputs) {
    std::vector<BoundaryTensor> borders;
    for (const at::Tensor& output : outputs) {
      BoundaryTensor border;
      if (output.defined()) {
        border.shape = output.sizes().vec();
        border.type = output.scalar_type();
        border.differentiable = output.requires_grad();
        border.bytes = Bytes(static_cast<std::int64_t>(output.nbytes()));
      }
      borders.push_back(std::move(border));
    }
    return borders;
  }

  static void require_loss(const Tensors& outputs, const std::string& name) {
    if (outputs.size() == 1 && outputs[0].defined() && outputs[0].numel() == 1 &&
        outputs[0].is_floating_point()) {
      return;
    }
    throw Unsupported("the last layer, \"" + name +
                      "\", must return one scalar: the sum of its rows' losses divided by "
                      "context.loss_denominator()");
  }

  [[noreturn]] static void refuse_random(const std::string& name, const Layer& layer) {
    throw Unsupported("layer \"" + name + "\" draws from Torch's process-wide generator (as " +
                      dropout_module(layer) +
                      " does), so its results could not be repeated: use hydra::dropout or "
                      "context.generator() instead");
  }

  [[noreturn]] static void refuse_state(const std::string& name, Bytes held) {
    throw Unsupported("layer \"" + name + "\" keeps " + to_string(held) +
                      " of tensors between calls: compute them in each forward, or register them "
                      "as buffers when the layer is made");
  }

  const Model& model_;
  const ModelSchema& schema_;
  SideInputs side_on_device_;
  double loss_denominator_;
  std::uint64_t seed_;
  Device& device_;
  Tensors flowing_;
  std::vector<bool> differentiable_;  // per tensor of flowing_
};

}  // namespace

PilotResult run_pilot(const Model& model, const ModelSchema& schema, const Tensors& inputs,
                      const SideInputs& side, double loss_denominator, std::uint64_t seed,
                      Device& device) {
  PilotResult result;
  std::string at_layer = "the first batch";
  try {
    PilotRun run(model, schema, inputs, side, loss_denominator, seed, device);
    for (std::size_t l = 0; l < schema.layers.size(); ++l) {
      at_layer = "layer \"" + schema.layers[l].name + "\"";
      run.measure(static_cast<std::int64_t>(l), result);
    }
  } catch (const OutOfDeviceMemory& error) {
    release_autograd_queue();
    throw DoesNotFit(at_layer + " does not fit device " + device.name() +
                     " even alone: " + to_string(error.requested()) + " asked for beside " +
                     to_string(error.in_use()) + " in use, budget " + to_string(error.budget()) +
                     ": raise the device's memory, lower the micro-batch size, or split the layer");
  } catch (const Error&) {
    release_autograd_queue();
    throw;
  } catch (const std::exception& error) {
    release_autograd_queue();
    throw LayerError(at_layer + ": " + exception_text(error));
  }
  return result;
}

}  // namespace hydra
