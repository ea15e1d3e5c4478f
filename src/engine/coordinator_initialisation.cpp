#include <algorithm>
#include <utility>

#include "engine/coordinator.h"

namespace hydra {
namespace {

ParameterState initial_state(const PreparedJob& prepared, const std::string& full_name) {
  const ParameterGroup group = group_of(prepared.options.groups, full_name);
  ParameterState state;
  state.learning_rate_scale = group.learning_rate_scale;
  state.weight_decay = group.weight_decay.value_or(prepared.optimizer->weight_decay());
  return state;
}

std::vector<ShardRecord> shard_records(const PreparedJob& prepared) {
  std::vector<ShardRecord> shards(prepared.layouts.size());
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (const auto& entry : prepared.layouts[s].trainable) {
      const auto& layer = prepared.schema.layers[static_cast<std::size_t>(entry.layer)];
      shards[s].parameters.push_back(initial_state(
          prepared, layer.parameters[static_cast<std::size_t>(entry.parameter)].full_name));
    }
  }
  return shards;
}

std::vector<TieRecord> tie_records(const PreparedJob& prepared) {
  std::vector<TieRecord> ties(prepared.schema.ties.size());
  for (std::size_t t = 0; t < ties.size(); ++t) {
    ties[t].frozen = prepared.schema.ties[t].frozen;
    ties[t].state = initial_state(prepared, prepared.schema.ties[t].full_name);
  }
  for (std::size_t s = 0; s < prepared.layouts.size(); ++s) {
    const auto& uses = prepared.layouts[s].tied;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      ties[static_cast<std::size_t>(uses[i].tie)].uses.push_back({s, i});
    }
  }
  return ties;
}

PartId& slot_of(JobRecord& record, const NewPart& part) {
  switch (part.role) {
    case NewPart::Role::kTrainable:
      return record.shards[part.index].trainable;
    case NewPart::Role::kFrozen:
      return record.shards[part.index].frozen;
    case NewPart::Role::kMoments:
      return record.shards[part.index].moments;
    case NewPart::Role::kTie:
      return record.ties[part.index].part;
    case NewPart::Role::kTieMoments:
      break;
  }
  return record.ties[part.index].moments;
}

std::string label_of(const JobRecord& record, const NewPart& part) {
  const std::string shard = record.shared->name() + " shard " + std::to_string(part.index);
  const auto tie = [&] {
    return record.shared->name() + " " + record.prepared->schema.ties[part.index].full_name;
  };
  switch (part.role) {
    case NewPart::Role::kTrainable:
      return shard + " parameters";
    case NewPart::Role::kFrozen:
      return shard + " frozen parameters";
    case NewPart::Role::kMoments:
      return shard + " moments";
    case NewPart::Role::kTie:
      return tie();
    case NewPart::Role::kTieMoments:
      break;
  }
  return tie() + " moments";
}

void add_once(std::vector<PartId>& parts, PartId part) {
  if (part.valid() && std::find(parts.begin(), parts.end(), part) == parts.end()) {
    parts.push_back(part);
  }
}

/// What a unit of a shard holds on its device.
std::vector<PartId> claimed_parts(const JobRecord& record, std::size_t s) {
  const ShardRecord& shard = record.shards[s];
  std::vector<PartId> parts;
  add_once(parts, shard.trainable);
  add_once(parts, shard.frozen);
  for (const auto& use : record.prepared->layouts[s].tied) {
    add_once(parts, record.ties[static_cast<std::size_t>(use.tie)].part);
  }
  if (record.prepared->plan.fits_device) {
    add_once(parts, shard.moments);
    for (const TieRecord& tie : record.ties) add_once(parts, tie.moments);
  }
  return parts;
}

}  // namespace

void Coordinator::begin_initialisation(JobRecord& record, Reservation memory) {
  record.admitted = true;
  record.shards = shard_records(*record.prepared);
  record.ties = tie_records(*record.prepared);
  Initialisation initialisation;
  initialisation.steps = initial_steps(*record.prepared);
  initialisation.memory = std::move(memory);
  record.initialisation = std::move(initialisation);
}

bool Coordinator::start_initial_steps() {
  bool any = false;
  for (auto& [id, record] : jobs_) {
    if (!record->initialisation || record->ending) continue;
    guarded(*record, [&] { any = start_initial_step(*record) || any; });
  }
  return any;
}

bool Coordinator::start_initial_step(JobRecord& record) {
  Initialisation& initialisation = *record.initialisation;
  if (initialisation.working) return false;
  const InitialStep& step = initialisation.steps[initialisation.next];
  auto room = room_for(record, step);
  if (!room) return false;
  Reservation beside;
  if (step.values) {
    beside = initialisation.memory.split(bytes_beside_parts(*record.prepared, step.shard));
  }
  initialisation.working = true;
  ++record.in_flight;
  // A task has to be copyable, which reservations are not.
  auto memory =
      std::make_shared<std::pair<Reservation, Reservation>>(std::move(*room), std::move(beside));
  job_worker_->submit([this, job = record.id, prepared = record.prepared,
                       given = record.inputs.initial_weights, step, memory] {
    StepInitialised done{job, nullptr, nullptr};
    try {
      done.made = std::make_shared<InitialisedStep>(
          make_initial_step(*prepared, given.get(), step, *options_.host_arena,
                            std::move(memory->first), std::move(memory->second)));
    } catch (...) {
      done.failure = std::current_exception();
    }
    post(std::move(done));
  });
  return true;
}

// Parts on storage are made in memory that is the host's cache over it; the others have been paid
// for when the job was admitted.
std::optional<Reservation> Coordinator::room_for(JobRecord& record, const InitialStep& step) {
  Initialisation& initialisation = *record.initialisation;
  if (!record.prepared->on_storage) return initialisation.memory.split(step.bytes());
  if (!initialisation.room) initialisation.room = store_->open_host_claim({}, step.bytes());
  if (store_->advance(*initialisation.room) != ShardStore::ClaimState::kReady) return std::nullopt;
  Reservation room = store_->take_room(*initialisation.room);
  store_->close_host_claim(*std::exchange(initialisation.room, std::nullopt));
  return room;
}

void Coordinator::handle(StepInitialised& message) {
  JobRecord& record = job(message.job);
  --record.in_flight;
  if (record.ending) return;
  if (message.failure != nullptr) {
    end(record, JobState::kFailed, message.failure);
    return;
  }
  Initialisation& initialisation = *record.initialisation;
  initialisation.working = false;
  install(record, initialisation.steps[initialisation.next], *message.made);
  if (++initialisation.next == initialisation.steps.size()) end_initialisation(record);
}

void Coordinator::install(JobRecord& record, const InitialStep& step, InitialisedStep& made) {
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    install_part(record, step.parts[i], std::move(made.parts[i]));
  }
  if (!step.values) return;
  ShardRecord& shard = record.shards[step.shard];
  shard.modules = std::move(made.modules);
  shard.buffers[0] = std::move(made.buffers[0]);
  shard.buffers[1] = std::move(made.buffers[1]);
  shard.gradients = std::move(made.gradients);
  shard.tied_gradients = std::move(made.tied_gradients);
  shard.tied_gradients.resize(record.prepared->layouts[step.shard].tied.size());
}

void Coordinator::install_part(JobRecord& record, const NewPart& part, HostBuffer memory) {
  const bool on_storage = record.prepared->on_storage;
  const PartId id = store_->add({record.id, label_of(record, part), std::move(memory), on_storage});
  record.parts.push_back(id);
  slot_of(record, part) = id;
  if (on_storage) record.uses.emplace(id, use_of(record, part));
}

void Coordinator::end_initialisation(JobRecord& record) {
  for (std::size_t s = 0; s < record.shards.size(); ++s) {
    record.shards[s].claimed_parts = claimed_parts(record, s);
  }
  record.batches = std::move(record.initialisation->memory);
  record.initialisation.reset();
  try {
    record.loader = std::make_unique<BatchLoader>(
        record.inputs.data, 0, record.prepared->options.max_steps,
        static_cast<std::size_t>(options_.loader_depth),
        [inbox = inbox_, job = record.id] { inbox->push(BatchReady{job}); });
    record.inputs.initial_weights.reset();
    if (record.inputs.callbacks != nullptr) start_callback_worker(record);
  } catch (...) {
    end(record, JobState::kFailed, std::current_exception());
    return;
  }
  record.active = true;
  record.last_turn = units_given_;
  record.shared->begin(options_.clock->now());
}

}  // namespace hydra
