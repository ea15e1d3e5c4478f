#include <algorithm>
#include <utility>

#include "engine/coordinator.h"
#include "hydra/core/check.h"

namespace hydra {
namespace {

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

bool Coordinator::try_dispatch(Slot& slot) {
  slot.next->loaded = store_->advance(slot.next->claim) == ShardStore::ClaimState::kReady;
  if (slot.running) return false;
  JobRecord& record = job(slot.next->job);
  if (!slot.next->loaded || !may_start(*slot.next)) return false;
  if (record.retry_alone == slot.next->index) {
    const bool alone = store_->clear_device(slot.id, slot.next->claim);
    if (!alone || slot.in_flight > 0) return false;
    slot.device->trim();
  }
  const Plan& plan = record.prepared->plan;
  const Bytes required =
      plan.fits_device ? plan.resident_bytes : required_bytes(plan, slot.next->unit);
  Bytes parts;
  for (const PartId part : record.shards[index_of(slot.next->unit.shard)].claimed_parts) {
    parts += slot.device->allocation_size(store_->bytes(part));
  }
  auto workspace = store_->reserve_workspace(slot.id, std::max(required - parts, Bytes(0)));
  if (!workspace) return false;
  dispatch(slot, std::move(*workspace));
  return true;
}

void Coordinator::dispatch(Slot& slot, Reservation workspace) {
  const Assignment assignment = *slot.next;
  slot.next.reset();
  JobRecord& record = job(assignment.job);
  const UnitId id = next_unit_++;
  InFlight flight;
  flight.job = record.id;
  flight.device = slot.id;
  flight.index = assignment.index;
  flight.unit = assignment.unit;
  flight.step = record.step;
  flight.claim = assignment.claim;
  flight.alone = record.retry_alone == assignment.index;
  flight.workspace = std::move(workspace);
  flight.command = make_command(record, assignment);
  --record.claims;
  record.flying.push_back(id);
  record.shards[index_of(assignment.unit.shard)].at_work = true;
  record.last_device = slot.id;
  ++record.next_unit;
  ++record.units_served;
  record.last_turn = ++units_given_;
  ++record.in_flight;
  if (assignment.unit.kind != UnitKind::kForward) ++record.undrained;
  slot.running = id;
  ++slot.in_flight;
  UnitCallbacks callbacks;
  callbacks.computed = [this, id](UnitOutcome outcome) {
    post(UnitComputed{id, std::make_shared<UnitOutcome>(std::move(outcome))});
  };
  callbacks.emitted = [this, id](std::exception_ptr failure) { post(UnitEmitted{id, failure}); };
  callbacks.drained = [this, id](std::exception_ptr failure) { post(UnitDrained{id, failure}); };
  if (!flight.command->arrivals.empty()) {  // fires last of all if the unit fails
    flight.command->arrivals.front().then([inbox = inbox_, id] { inbox->push(UnitBegan{id}); });
  }
  account_for(slot, Activity::kBusy, options_.clock->now());
  slot.device->submit([this, device = slot.device, command = flight.command, callbacks] {
    run_unit(*device, *command, callbacks, *options_.clock, *options_.trace);
  });
  in_flight_.emplace(id, std::move(flight));
}

std::shared_ptr<UnitCommand> Coordinator::make_command(JobRecord& record,
                                                       const Assignment& assignment) {
  const PreparedJob& prepared = *record.prepared;
  const std::size_t s = index_of(assignment.unit.shard);
  ShardRecord& shard = record.shards[s];
  const FlatLayout& layout = prepared.layouts[s];
  const auto on_device = [&](PartId part) -> std::byte* {
    return part.valid() ? store_->device_data(assignment.claim, part) : nullptr;
  };
  auto command = std::make_shared<UnitCommand>();
  command->job = record.id;
  command->unit = assignment.unit;
  command->label = describe(record, assignment.unit, record.step);
  command->reason = assignment.reason;
  command->flows = store_->take_flows(assignment.claim);
  command->step = record.step;
  command->seed = prepared.options.seed;
  command->modules = shard.modules.get();
  command->schema = &prepared.schema;
  command->parts.trainable = on_device(shard.trainable);
  command->parts.frozen = on_device(shard.frozen);
  for (const auto& use : layout.tied) {
    command->parts.tied.push_back(on_device(record.ties[index_of(use.tie)].part));
  }
  command->batch = record.batch.get();
  command->micro_batch_size = prepared.micro_batch_size;
  StepMemory& memory = *record.memory;
  const bool forward = assignment.unit.kind == UnitKind::kForward;
  if (s > 0) command->inputs = &memory.activations[s - 1];
  if (forward) {
    command->outputs = &memory.activations[s];
    for (const auto& tensor : prepared.pilot.outputs[index_of(layout.end_layer - 1)]) {
      command->output_differentiable.push_back(tensor.differentiable);
    }
  }
  if (assignment.unit.kind == UnitKind::kBackward) {
    command->output_gradients = &memory.gradients[s];
  }
  if (!forward && assignment.unit.shard > prepared.first_trainable) {
    command->input_gradients = &memory.gradients[s - 1];
  }
  const auto emits = forward ? command->outputs : command->input_gradients;
  const std::int64_t count = emits != nullptr ? micro_batches(record) : 0;
  for (std::int64_t m = 0; m < count; ++m) {
    command->arrivals.push_back((*emits)[index_of(m)].expect());
  }
  command->buffers_before = shard.buffers[record.present_buffers].data();
  if (assignment.unit.kind != UnitKind::kBackward) {
    command->buffers_after = shard.buffers[1 - record.present_buffers].data();
  }
  command->gradients = shard.gradients.data();
  for (const HostBuffer& target : shard.tied_gradients) {
    command->tied_gradients.push_back(target.data());
  }
  if (prepared.plan.fits_device) add_resident_update(record, assignment, *command);
  return command;
}

std::int64_t Coordinator::micro_batches(const JobRecord& record) const {
  const std::int64_t size = record.prepared->micro_batch_size;
  return (record.batch->rows + size - 1) / size;
}

void Coordinator::add_resident_update(JobRecord& record, const Assignment& assignment,
                                      UnitCommand& command) {
  const JobOptions& options = record.prepared->options;
  const ShardRecord& shard = record.shards.front();
  ResidentUpdate update;
  update.optimizer = record.prepared->optimizer.get();
  update.learning_rate = record.rates.at(record.step);
  update.max_gradient_norm = options.max_gradient_norm;
  if (shard.moments.valid()) {
    update.moments = store_->device_data(assignment.claim, shard.moments);
  }
  update.parameters = shard.parameters;
  for (const TieRecord& tie : record.ties) {
    update.ties.push_back(tie.state);
    update.tied_moments.push_back(
        tie.moments.valid() ? store_->device_data(assignment.claim, tie.moments) : nullptr);
  }
  command.resident = std::move(update);
}

void Coordinator::handle(UnitComputed& message) {
  InFlight& flight = in_flight_.at(message.unit);
  Slot& device = slot(flight.device);
  JobRecord& record = job(flight.job);
  device.running.reset();
  flight.outcome = message.outcome;
  record.shards[index_of(flight.unit.shard)].at_work = false;
  use_.waited(index_of(flight.device.value()), flight.outcome->waited);
  if (flight.outcome->failure != nullptr) {
    store_->close_claim(flight.claim);
    unit_failed(record, flight);
    land(record, message.unit);
    --record.in_flight;
    --device.in_flight;
    in_flight_.erase(message.unit);
    return;
  }
  if (record.retry_alone == flight.index) record.retry_alone.reset();
  record.transfer_retries = 0;
  record.loss += flight.outcome->loss;
  record.times.observe(flight.index, flight.outcome->compute);
  if (flight.command->resident) resident_step_done(record, flight);
  store_->close_claim(flight.claim);
  const Bytes draining = draining_bytes(flight);
  if (flight.workspace.bytes() > draining) {
    flight.workspace.split(flight.workspace.bytes() - draining);  // given back at once
  }
}

// Nothing more of the unit is to come that another one could wait for.
void Coordinator::land(JobRecord& record, UnitId unit) {
  std::erase(record.flying, unit);
  if (record.flying.empty()) record.rewinding = false;
}

// Units that have come after it already are failing for want of what it was to hand on.
void Coordinator::rewind(JobRecord& record, std::size_t unit) {
  give_up_from(record, 0);
  record.next_unit = std::min(record.next_unit, unit);
  record.rewinding = true;
}

// Restartable: nothing of a failed unit became visible, but to units that fail with it. Out of
// memory is tried once more, alone.
void Coordinator::unit_failed(JobRecord& record, const InFlight& flight) {
  if (flight.unit.kind != UnitKind::kForward) --record.undrained;
  if (record.ending) return;
  if (flight.outcome->superseded) {
    rewind(record, flight.index);
    return;
  }
  bool out_of_memory = false;
  try {
    std::rethrow_exception(flight.outcome->failure);
  } catch (const OutOfDeviceMemory&) {
    out_of_memory = true;
  } catch (...) {
  }
  if (!out_of_memory || record.retry_alone == flight.index) {
    end(record, JobState::kFailed, flight.outcome->failure);
    return;
  }
  options_.log->log(LogLevel::kWarning, flight.command->label + ": " +
                                            message_of(flight.outcome->failure) +
                                            "; trying once more with the device to itself");
  record.retry_alone = flight.index;
  rewind(record, flight.index);
}

void Coordinator::resident_step_done(JobRecord& record, const InFlight& flight) {
  ShardRecord& shard = record.shards.front();
  record.resident_norm = flight.outcome->gradient_norm;
  const auto written = [&](PartId part) {
    if (part.valid()) store_->mark_written(flight.claim, part);
  };
  written(shard.trainable);
  written(shard.moments);
  for (std::size_t i = 0; i < shard.parameters.size(); ++i) {
    if (flight.outcome->touched[i]) ++shard.parameters[i].updates;
  }
  ++shard.settled;
  const auto& uses = record.prepared->layouts.front().tied;
  for (std::size_t t = 0; t < record.ties.size(); ++t) {
    TieRecord& tie = record.ties[t];
    if (tie.frozen) continue;
    written(tie.part);
    written(tie.moments);
    bool touched = false;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (index_of(uses[i].tie) == t && flight.outcome->touched_tied[i]) touched = true;
    }
    if (touched) ++tie.state.updates;
    ++tie.settled;
  }
}

// What a unit still holds on its device once it has computed: what is on its way to the host.
Bytes Coordinator::draining_bytes(const InFlight& flight) {
  const ShardPlan& shard = job(flight.job).prepared->plan.shards[index_of(flight.unit.shard)];
  if (flight.unit.kind == UnitKind::kForward) return shard.output + shard.buffers;
  const Bytes gradients = flight.command->resident ? Bytes(0) : shard.gradients;
  return shard.input + shard.buffers + gradients;
}

void Coordinator::handle(UnitBegan& message) {
  const auto flight = in_flight_.find(message.unit);
  if (flight != in_flight_.end()) flight->second.begun = true;
}

void Coordinator::handle(UnitEmitted& message) {
  InFlight& flight = in_flight_.at(message.unit);
  JobRecord& record = job(flight.job);
  flight.emitted = true;
  land(record, message.unit);
  if (message.failure != nullptr) end(record, JobState::kFailed, message.failure);
  if (!record.ending) advance(record);
  finish_if_landed(message.unit);
}

void Coordinator::handle(UnitDrained& message) {
  InFlight& flight = in_flight_.at(message.unit);
  JobRecord& record = job(flight.job);
  flight.drained = true;
  if (flight.unit.kind != UnitKind::kForward) --record.undrained;
  if (message.failure != nullptr) end(record, JobState::kFailed, message.failure);
  if (!record.ending && flight.unit.kind != UnitKind::kForward && !flight.command->resident) {
    gradients_arrived(record, flight);
  }
  finish_if_landed(message.unit);
}

void Coordinator::finish_if_landed(UnitId unit) {
  InFlight& flight = in_flight_.at(unit);
  if (!flight.emitted || !flight.drained) return;
  --job(flight.job).in_flight;
  --slot(flight.device).in_flight;
  in_flight_.erase(unit);
}

Activity Coordinator::activity_of(const Slot& slot) const {
  if (slot.running || slot.piloting) return Activity::kBusy;
  if (slot.next) return slot.next->loaded ? Activity::kUnit : Activity::kTransfer;
  Activity activity = Activity::kIdle;
  for (const auto& [id, record] : jobs_) {
    if (record->ending || record->sealing || record->step >= record->end_step) continue;
    if (record->active && record->step_begun) return Activity::kUnit;
    activity = Activity::kInput;
  }
  return activity;
}

void Coordinator::account_for_devices() {
  const Nanoseconds now = options_.clock->now();
  for (const Slot& slot : slots_) account_for(slot, activity_of(slot), now);
  trace_counters(now);
}

void Coordinator::account_for(const Slot& slot, Activity activity, Nanoseconds now) {
  const auto ended = use_.enter(index_of(slot.id.value()), activity, now);
  if (ended) trace_wait(slot, *ended, now);
}

std::string Coordinator::describe(const JobRecord& record, const Unit& unit,
                                  std::int64_t step) const {
  return record.shared->name() + " " + to_string(unit.kind) + " shard " +
         std::to_string(unit.shard) + " step " + std::to_string(step);
}

}  // namespace hydra
