#include "engine/unit_runner.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <utility>

#include "engine/global_norm.h"
#include "hydra/core/check.h"
#include "hydra/data/batch.h"
#include "model/autograd_queue.h"
#include "model/exception_text.h"

namespace hydra {
namespace {

/// One micro-batch's tensors on the device, on their way or there.
struct Staged {
  Tensors inputs;
  Tensors output_gradients;
  SideInputs side;
  std::vector<Event> uploads;
};

at::Tensor device_tensor(const std::vector<std::int64_t>& shape, c10::ScalarType type) {
  return at::empty(shape, at::TensorOptions().dtype(type));
}

float* floats(std::byte* base, Bytes offset) {
  return reinterpret_cast<float*>(base + offset.size());
}

void call_when_fired(const std::vector<Event>& events,
                     const std::function<void(std::exception_ptr)>& callback) {
  if (events.empty()) {
    callback(nullptr);
    return;
  }
  // Copies of one stream fire in order: with the last, all have fired.
  events.back().then([events, callback] { callback(first_failure(events)); });
}

/// Tells those who wait for what a failed unit has not handed on that it never will.
void fail_arrivals(const std::vector<Event>& arrivals, std::exception_ptr failure) {
  for (const Event& arrival : arrivals) {
    if (!arrival.fired()) arrival.fire(failure);
  }
}

/// The course of one unit on the worker.
class UnitRun {
 public:
  UnitRun(Device& device, const UnitCommand& command, const Clock& clock)
      : device_(device), command_(command), clock_(clock) {}

  void compute() {
    prepare_memory();
    const std::int64_t count = micro_batches();
    for (std::int64_t m = 0; m < count; ++m) {
      if (staged_.empty()) stage(m);
      if (m + 1 < count && arrived(m + 1)) stage(m + 1);
      Staged& present = staged_.front();
      await(present.uploads);
      switch (command_.unit.kind) {
        case UnitKind::kForward:
          forward(m, present);
          break;
        case UnitKind::kTail:
          tail(m, present);
          break;
        case UnitKind::kBackward:
          backward(m, present);
          break;
      }
      staged_.pop_front();
    }
    emit_buffers();
    if (command_.unit.kind != UnitKind::kForward) finish_gradients();
    command_.modules->unbind();
  }

  /// Waits for every copy under way, so that nothing touches memory that is about to be freed.
  void abandon() noexcept {
    for (const auto& list : {uploads_, emissions_, drains_}) {
      for (const Event& event : list) {
        try {
          event.wait();
        } catch (...) {  // the unit has failed already
        }
      }
    }
    command_.modules->unbind();
    staged_.clear();
    gradients_.reset();
    buffers_.reset();
    previous_emission_.clear();
  }

  UnitOutcome& outcome() { return outcome_; }
  const std::vector<Event>& emissions() const { return emissions_; }
  const std::vector<Event>& drains() const { return drains_; }

 private:
  struct GradientMemory {
    DeviceBuffer flat;
    std::vector<DeviceBuffer> tied;
  };

  std::int64_t micro_batches() const {
    return (command_.batch->rows + command_.micro_batch_size - 1) / command_.micro_batch_size;
  }

  const FlatLayout& layout() const { return command_.modules->layout(); }

  void prepare_memory() {
    ShardMemory memory = command_.parts;
    const FlatLayout& flat = layout();
    if (flat.buffer_bytes > Bytes(0)) {
      // A copy of the unit's own: forward emits it when it completes, recomputation discards it.
      buffers_ = std::make_shared<DeviceBuffer>(device_, flat.buffer_bytes);
      const Event loaded =
          device_.upload().copy(buffers_->data(), command_.buffers_before, flat.buffer_bytes);
      uploads_.push_back(loaded);
      await({loaded});
      memory.buffers = buffers_->data();
    }
    memory.tied_gradients.assign(flat.tied.size(), nullptr);
    if (command_.unit.kind != UnitKind::kForward) allocate_gradients(memory);
    command_.modules->bind(memory);
    command_.modules->train(true);
    memory_ = std::move(memory);
  }

  void allocate_gradients(ShardMemory& memory) {
    const FlatLayout& flat = layout();
    gradients_ = std::make_shared<GradientMemory>();
    if (flat.trainable_bytes > Bytes(0)) {
      gradients_->flat = DeviceBuffer(device_, flat.trainable_bytes);
      std::memset(gradients_->flat.data(), 0, flat.trainable_bytes.size());
    }
    memory.gradients = gradients_->flat.data();
    for (std::size_t i = 0; i < flat.tied.size(); ++i) {
      const auto tie = static_cast<std::size_t>(flat.tied[i].tie);
      if (command_.schema->ties[tie].frozen) {
        gradients_->tied.emplace_back();
        continue;
      }
      const Bytes size = tie_bytes(*command_.schema, flat.tied[i].tie);
      gradients_->tied.emplace_back(device_, size);
      std::memset(gradients_->tied.back().data(), 0, size.size());
      memory.tied_gradients[i] = gradients_->tied.back().data();
    }
  }

  at::Tensor upload(const void* source, const std::vector<std::int64_t>& shape,
                    c10::ScalarType type, std::vector<Event>& events) {
    at::Tensor tensor = device_tensor(shape, type);
    if (tensor.nbytes() > 0) {
      events.push_back(device_.upload().copy(tensor.data_ptr(), source,
                                             Bytes(static_cast<std::int64_t>(tensor.nbytes()))));
      uploads_.push_back(events.back());
    }
    return tensor;
  }

  void upload_slot(const BoundarySlot& slot, Tensors& tensors, std::vector<Event>& events) {
    for (const BoundarySlot::Entry& entry : slot.entries()) {
      tensors.push_back(entry.defined ? upload(slot.data(entry), entry.shape, entry.type, events)
                                      : at::Tensor());
    }
  }

  /// The slots that a micro-batch comes from; the batch's own tensors are always there.
  std::vector<const BoundarySlot*> sources(std::int64_t m) const {
    std::vector<const BoundarySlot*> slots;
    const auto index = static_cast<std::size_t>(m);
    if (command_.inputs != nullptr) slots.push_back(&(*command_.inputs)[index]);
    if (command_.unit.kind == UnitKind::kBackward) {
      slots.push_back(&(*command_.output_gradients)[index]);
    }
    return slots;
  }

  bool arrived(std::int64_t m) const {
    const auto slots = sources(m);
    return std::all_of(slots.begin(), slots.end(),
                       [](const BoundarySlot* slot) { return slot->arrived().fired(); });
  }

  // The unit before this one may still be at work on it, on another device.
  void await_arrival(std::int64_t m) {
    const Nanoseconds start = clock_.now();
    try {
      for (const BoundarySlot* slot : sources(m)) slot->arrived().wait();
    } catch (...) {
      outcome_.superseded = true;
      throw;
    }
    outcome_.waited += clock_.now() - start;
  }

  // Staged tensors belong to the run, not to a scope: an exception must not free what is still
  // being copied into.
  void stage(std::int64_t m) {
    await_arrival(m);
    Staged& staged = staged_.emplace_back();
    const std::int64_t begin = m * command_.micro_batch_size;
    const std::int64_t end = std::min(begin + command_.micro_batch_size, command_.batch->rows);
    const Batch rows = rows_of(*command_.batch, begin, end);
    if (command_.inputs == nullptr) {
      for (const at::Tensor& input : rows.inputs) {
        staged.inputs.push_back(upload(input.const_data_ptr(), input.sizes().vec(),
                                       input.scalar_type(), staged.uploads));
      }
    } else {
      upload_slot((*command_.inputs)[static_cast<std::size_t>(m)], staged.inputs, staged.uploads);
    }
    for (const auto& [name, tensor] : rows.side) {
      staged.side.emplace_back(name, upload(tensor.const_data_ptr(), tensor.sizes().vec(),
                                            tensor.scalar_type(), staged.uploads));
    }
    if (command_.unit.kind == UnitKind::kBackward) {
      upload_slot((*command_.output_gradients)[static_cast<std::size_t>(m)],
                  staged.output_gradients, staged.uploads);
    }
  }

  void await(const std::vector<Event>& events) {
    for (const Event& event : events) device_.compute().wait(event);
    if (const auto failure = first_failure(events)) std::rethrow_exception(failure);
  }

  Tensors run_layers(std::int64_t m, const Staged& staged) {
    return command_.modules->forward(staged.inputs, [&](std::int64_t layer_use) {
      return LayerContext({command_.seed, command_.step, m, layer_use}, Mode::kTrain,
                          command_.batch->loss_denominator, staged.side);
    });
  }

  void record_inputs(std::int64_t m, Staged& staged) const {
    if (command_.input_gradients == nullptr) return;
    const auto& entries = (*command_.inputs)[static_cast<std::size_t>(m)].entries();
    for (std::size_t i = 0; i < staged.inputs.size(); ++i) {
      if (staged.inputs[i].defined() && entries[i].differentiable) {
        staged.inputs[i].requires_grad_(true);
      }
    }
  }

  void forward(std::int64_t m, Staged& staged) {
    at::NoGradGuard not_recording;
    Tensors outputs = run_layers(m, staged);
    staged.inputs.clear();
    emit(m, (*command_.outputs)[static_cast<std::size_t>(m)], std::move(outputs));
  }

  void tail(std::int64_t m, Staged& staged) {
    at::AutoGradMode recording(true);
    record_inputs(m, staged);
    Tensors outputs = run_layers(m, staged);
    if (outputs.size() != 1 || !outputs[0].defined() || outputs[0].numel() != 1) {
      throw LayerError("the last layer must return one scalar, the micro-batch's loss");
    }
    const double loss = outputs[0].item<float>();
    if (!std::isfinite(loss)) {
      throw NonFinite("the loss of step " + std::to_string(command_.step) + ", micro-batch " +
                      std::to_string(m) + " is " + std::to_string(loss) +
                      ": lower the learning rate or clip the gradient norm");
    }
    outcome_.loss += loss;
    if (outputs[0].requires_grad()) torch::autograd::backward(outputs, {});
    outputs.clear();
    emit_input_gradients(m, staged);
  }

  void backward(std::int64_t m, Staged& staged) {
    at::AutoGradMode recording(true);
    record_inputs(m, staged);
    Tensors outputs = run_layers(m, staged);
    Tensors roots;
    Tensors seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      at::Tensor& seed = staged.output_gradients.at(i);
      if (!seed.defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(std::move(outputs[i]));
      seeds.push_back(std::move(seed));
    }
    outputs.clear();
    staged.output_gradients.clear();
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
    roots.clear();
    seeds.clear();
    emit_input_gradients(m, staged);
  }

  void emit_input_gradients(std::int64_t m, Staged& staged) {
    if (command_.input_gradients == nullptr) return;
    Tensors gradients;
    for (at::Tensor& input : staged.inputs) {
      gradients.push_back(input.defined() && input.requires_grad() ? input.grad() : at::Tensor());
    }
    staged.inputs.clear();
    emit(m, (*command_.input_gradients)[static_cast<std::size_t>(m)], std::move(gradients));
  }

  /// Sends tensors to the host. At most one micro-batch is on its way at a time.
  void emit(std::int64_t m, BoundarySlot& slot, Tensors tensors) {
    for (at::Tensor& tensor : tensors) {
      if (tensor.defined()) tensor = tensor.detach().contiguous();
    }
    slot.describe(tensors, command_.output_differentiable);
    await(previous_emission_);
    previous_emission_.clear();
    device_.download().wait(device_.compute().record());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined() || tensors[i].nbytes() == 0) continue;
      const auto& entry = slot.entries()[i];
      const Event event =
          device_.download().copy(slot.data(entry), tensors[i].const_data_ptr(), entry.bytes);
      event.then([kept = tensors[i]]() mutable { kept.reset(); });
      previous_emission_.push_back(event);
      emissions_.push_back(event);
    }
    call_when_fired(previous_emission_,
                    [arrival = command_.arrivals.at(static_cast<std::size_t>(m))](
                        std::exception_ptr failure) { arrival.fire(failure); });
  }

  void emit_buffers() {
    if (command_.buffers_after == nullptr) buffers_.reset();
    if (buffers_ == nullptr) return;
    device_.download().wait(device_.compute().record());
    const Event event =
        device_.download().copy(command_.buffers_after, buffers_->data(), layout().buffer_bytes);
    event.then([kept = buffers_]() mutable { kept.reset(); });
    emissions_.push_back(event);
    buffers_.reset();
  }

  void finish_gradients() {
    outcome_.touched = command_.modules->touched_trainable();
    outcome_.touched_tied = command_.modules->touched_tied();
    const FlatLayout& flat = layout();
    for (std::size_t i = 0; i < flat.trainable.size(); ++i) {
      outcome_.square_sums.push_back(
          outcome_.touched[i] ? square_sum(floats(memory_.gradients, flat.trainable[i].offset),
                                           flat.trainable[i].elements)
                              : 0.0);
    }
    if (command_.resident) {
      update_on_device();
    } else {
      drain_gradients();
    }
  }

  void drain_gradients() {
    device_.download().wait(device_.compute().record());
    const auto drain = [this](std::byte* target, const DeviceBuffer& source) {
      const Event event = device_.download().copy(target, source.data(), source.size());
      event.then([kept = gradients_]() mutable { kept.reset(); });
      drains_.push_back(event);
    };
    if (gradients_->flat.size() > Bytes(0)) drain(command_.gradients, gradients_->flat);
    for (std::size_t i = 0; i < gradients_->tied.size(); ++i) {
      if (gradients_->tied[i].size() > Bytes(0) && outcome_.touched_tied[i]) {
        drain(command_.tied_gradients[i], gradients_->tied[i]);
      }
    }
    gradients_.reset();
  }

  /// Adds up the accumulators of each tie; null where the tie is frozen or untouched.
  std::vector<float*> combine_ties() {
    std::vector<float*> sums;
    const FlatLayout& flat = layout();
    for (std::size_t tie = 0; tie < command_.schema->ties.size(); ++tie) {
      std::vector<float*> accumulators;
      std::vector<bool> touched;
      for (std::size_t i = 0; i < flat.tied.size(); ++i) {
        if (static_cast<std::size_t>(flat.tied[i].tie) != tie) continue;
        accumulators.push_back(reinterpret_cast<float*>(memory_.tied_gradients[i]));
        touched.push_back(outcome_.touched_tied[i] && memory_.tied_gradients[i] != nullptr);
      }
      sums.push_back(combine_uses(accumulators, touched, command_.schema->ties[tie].elements));
    }
    return sums;
  }

  std::byte* tied_part(std::size_t tie) const {
    for (std::size_t i = 0; i < layout().tied.size(); ++i) {
      if (static_cast<std::size_t>(layout().tied[i].tie) == tie) return memory_.tied[i];
    }
    return nullptr;
  }

  void update_on_device() {
    const ResidentUpdate& update = *command_.resident;
    const std::vector<float*> tie_sums = combine_ties();
    GradientSquares squares(*command_.schema);
    squares.set(layout(), outcome_.square_sums);
    for (std::size_t tie = 0; tie < tie_sums.size(); ++tie) {
      if (tie_sums[tie] == nullptr) continue;
      squares.set_tie(static_cast<std::int64_t>(tie),
                      square_sum(tie_sums[tie], command_.schema->ties[tie].elements));
    }
    outcome_.gradient_norm = squares.norm();
    require_finite_norm(outcome_.gradient_norm, command_.step);
    const float factor = update.max_gradient_norm
                             ? clip_factor(outcome_.gradient_norm, *update.max_gradient_norm)
                             : 1.0F;
    const int slots = update.optimizer->state_slots();
    const FlatLayout& flat = layout();
    for (std::size_t i = 0; i < flat.trainable.size(); ++i) {
      if (!outcome_.touched[i]) continue;
      const Bytes offset = flat.trainable[i].offset;
      update_parameter(*update.optimizer,
                       {floats(memory_.trainable, offset), floats(memory_.gradients, offset),
                        slots > 0 ? floats(update.moments, offset) : nullptr,
                        slots > 1 ? floats(update.moments, flat.trainable_bytes + offset) : nullptr,
                        flat.trainable[i].elements},
                       update.parameters[i], update.learning_rate, factor);
    }
    for (std::size_t tie = 0; tie < tie_sums.size(); ++tie) {
      if (tie_sums[tie] == nullptr) continue;
      const Bytes size = tie_bytes(*command_.schema, static_cast<std::int64_t>(tie));
      std::byte* moments = update.tied_moments[tie];
      update_parameter(
          *update.optimizer,
          {floats(tied_part(tie), Bytes(0)), tie_sums[tie],
           slots > 0 ? floats(moments, Bytes(0)) : nullptr,
           slots > 1 ? floats(moments, size) : nullptr, command_.schema->ties[tie].elements},
          update.ties[tie], update.learning_rate, factor);
    }
    gradients_.reset();
  }

  Device& device_;
  const UnitCommand& command_;
  const Clock& clock_;
  UnitOutcome outcome_;
  ShardMemory memory_;
  std::shared_ptr<GradientMemory> gradients_;  // shared with the copies that drain it
  std::shared_ptr<DeviceBuffer> buffers_;      // shared with the copy that emits it
  std::deque<Staged> staged_;                  // the micro-batch at work, then the next one
  std::vector<Event> uploads_;
  std::vector<Event> previous_emission_;
  std::vector<Event> emissions_;
  std::vector<Event> drains_;
};

std::exception_ptr as_hydra_error(const std::string& label) {
  try {
    throw;
  } catch (const Error&) {
    return std::current_exception();
  } catch (const std::exception& error) {
    return std::make_exception_ptr(LayerError(label + ": " + exception_text(error)));
  } catch (...) {
    return std::make_exception_ptr(LayerError(label + ": an exception of unknown type"));
  }
}

void trace_unit(const Device& device, const UnitCommand& command, const UnitOutcome& outcome,
                Nanoseconds start, TraceSink& trace) {
  TraceEvent event;
  event.track = device.name() + " compute";
  for (const std::int64_t flow : command.flows) {
    trace.record(flow_event(TraceEvent::Kind::kFlowEnd, event.track, start, flow));
  }
  event.category = "unit";
  event.name = command.label;
  event.start = start;
  event.duration = outcome.compute + outcome.waited;
  event.arguments = {{"step", std::to_string(command.step)},
                     {"reason", command.reason},
                     {"outcome", outcome.failure ? "failed" : "done"}};
  trace.record(std::move(event));
}

}  // namespace

void require_finite_norm(double norm, std::int64_t step) {
  if (std::isfinite(norm)) return;
  throw NonFinite("the gradient norm of step " + std::to_string(step) + " is " +
                  std::to_string(norm) + ": lower the learning rate or clip the gradient norm");
}

void run_unit(Device& device, const UnitCommand& command, const UnitCallbacks& callbacks,
              const Clock& clock, TraceSink& trace) {
  const Nanoseconds start = clock.now();
  UnitRun run(device, command, clock);
  try {
    run.compute();
  } catch (...) {
    run.outcome().failure = as_hydra_error(command.label);
  }
  if (run.outcome().failure != nullptr) {
    run.abandon();
    try {
      release_autograd_queue();
    } catch (...) {  // only held memory, and the next backward releases it
    }
  }
  run.outcome().compute = clock.now() - start - run.outcome().waited;
  if (trace.enabled()) trace_unit(device, command, run.outcome(), start, trace);
  // Kept: once the coordinator knows of a failure, nothing else of the unit needs to live.
  const std::exception_ptr failure = run.outcome().failure;
  const std::vector<Event> arrivals = command.arrivals;
  callbacks.computed(std::move(run.outcome()));
  if (failure != nullptr) {
    fail_arrivals(arrivals, failure);
    return;
  }
  call_when_fired(run.emissions(), callbacks.emitted);
  call_when_fired(run.drains(), callbacks.drained);
}

}  // namespace hydra
