#include <algorithm>
#include <utility>

#include "engine/coordinator.h"
#include "hydra/core/check.h"
#include "hydra/data/batch.h"

namespace hydra {
namespace {

ParameterState initial_state(const PreparedJob& prepared, const std::string& full_name) {
  const ParameterGroup group = group_of(prepared.options.groups, full_name);
  ParameterState state;
  state.learning_rate_scale = group.learning_rate_scale;
  state.weight_decay = group.weight_decay.value_or(prepared.optimizer->weight_decay());
  return state;
}

void add_once(std::vector<PartId>& parts, PartId part) {
  if (part.valid() && std::find(parts.begin(), parts.end(), part) == parts.end()) {
    parts.push_back(part);
  }
}

}  // namespace

// Jobs are admitted in the order of submission: the state of all admitted jobs and the largest step
// among them must fit the host budget together, so that one of them can always make its step.
void Coordinator::admit_jobs() {
  Bytes states;
  Bytes largest_step;
  for (const auto& [id, record] : jobs_) {
    if (!record->admitted) continue;
    states += record->prepared->state_bytes;
    largest_step = std::max(largest_step, record->prepared->step_bytes);
  }
  for (auto& [id, record] : jobs_) {
    if (record->admitted || record->ending) continue;
    const PreparedJob& prepared = *record->prepared;
    const Bytes step = std::max(largest_step, prepared.step_bytes);
    const bool steps_fit = states + prepared.state_bytes + step <= options_.host_budget->capacity();
    auto grant = steps_fit ? options_.host_budget->try_reserve(prepared.state_bytes)
                           : std::optional<Reservation>();
    if (!grant) {
      tell_waiting_for_host_memory(*record, states);
      return;
    }
    states += prepared.state_bytes;
    largest_step = step;
    record->admitted = true;
    ++record->in_flight;
    auto shared_grant = std::make_shared<Reservation>(std::move(*grant));
    job_worker_->submit([this, job = id, prepared = record->prepared, shared_grant] {
      Initialised done{job, nullptr, shared_grant, nullptr};
      try {
        done.made = std::make_shared<InitialisedJob>(
            initialise_job(*prepared, *options_.host_arena, *shared_grant));
      } catch (...) {
        done.failure = std::current_exception();
      }
      post(std::move(done));
    });
  }
}

// What running jobs hold comes back by itself; what finished jobs' handles hold does not.
void Coordinator::tell_waiting_for_host_memory(JobRecord& record, Bytes states) {
  if (record.told_waiting) return;
  record.told_waiting = true;
  const TierBudget& host = *options_.host_budget;
  options_.log->log(
      LogLevel::kInfo,
      "job \"" + record.shared->name() + "\" waits for " + to_string(record.prepared->state_bytes) +
          " of host memory: " + to_string(host.available()) + " of " + to_string(host.capacity()) +
          " are free, running jobs hold " + to_string(states) +
          " of state and their steps' memory, the rest are the weights of finished jobs, which "
          "live as long as a handle does");
}

void Coordinator::handle(Initialised& message) {
  JobRecord& record = job(message.job);
  --record.in_flight;
  if (message.failure != nullptr) {
    if (!record.ending) end(record, JobState::kFailed, message.failure);
    return;
  }
  if (record.ending) return;
  record.batches = std::move(*message.rest);
  install(record, *message.made);
  try {
    record.loader = std::make_unique<BatchLoader>(
        record.prepared->options.data, 0, record.prepared->options.max_steps,
        static_cast<std::size_t>(options_.loader_depth),
        [inbox = inbox_, job = record.id] { inbox->push(BatchReady{job}); });
    if (record.prepared->options.callbacks != nullptr) start_callback_worker(record);
  } catch (...) {
    end(record, JobState::kFailed, std::current_exception());
    return;
  }
  record.active = true;
  record.shared->begin(options_.clock->now());
}

void Coordinator::install(JobRecord& record, InitialisedJob& made) {
  const PreparedJob& prepared = *record.prepared;
  install_ties(record, made);
  for (std::size_t s = 0; s < made.shards.size(); ++s) {
    InitialisedShard& from = made.shards[s];
    const FlatLayout& layout = prepared.layouts[s];
    const std::string label = record.shared->name() + " shard " + std::to_string(s);
    const auto add = [&](HostBuffer& memory, const char* role) {
      if (!memory) return PartId();
      const PartId part = store_->add({record.id, label + " " + role, std::move(memory)});
      record.parts.push_back(part);
      return part;
    };
    ShardRecord shard;
    shard.modules = std::move(from.modules);
    shard.trainable = add(from.trainable, "parameters");
    shard.frozen = add(from.frozen, "frozen parameters");
    shard.moments = add(from.moments, "moments");
    add_once(shard.claimed_parts, shard.trainable);
    add_once(shard.claimed_parts, shard.frozen);
    for (const auto& use : layout.tied) {
      add_once(shard.claimed_parts, record.ties[static_cast<std::size_t>(use.tie)].part);
    }
    if (prepared.plan.fits_device) {
      add_once(shard.claimed_parts, shard.moments);
      for (const TieRecord& tie : record.ties) add_once(shard.claimed_parts, tie.moments);
    }
    shard.buffers[0] = std::move(from.buffers[0]);
    shard.buffers[1] = std::move(from.buffers[1]);
    shard.gradients = std::move(from.gradients);
    shard.tied_gradients = std::move(from.tied_gradients);
    shard.tied_gradients.resize(layout.tied.size());
    for (const auto& entry : layout.trainable) {
      shard.parameters.push_back(
          initial_state(prepared, prepared.schema.layers[static_cast<std::size_t>(entry.layer)]
                                      .parameters[static_cast<std::size_t>(entry.parameter)]
                                      .full_name));
    }
    record.shards.push_back(std::move(shard));
  }
}

void Coordinator::install_ties(JobRecord& record, InitialisedJob& made) {
  const PreparedJob& prepared = *record.prepared;
  for (std::size_t t = 0; t < made.ties.size(); ++t) {
    TieRecord tie;
    tie.frozen = prepared.schema.ties[t].frozen;
    tie.state = initial_state(prepared, prepared.schema.ties[t].full_name);
    const std::string label = record.shared->name() + " " + prepared.schema.ties[t].full_name;
    tie.part = store_->add({record.id, label, std::move(made.ties[t].part)});
    record.parts.push_back(tie.part);
    if (made.ties[t].moments) {
      tie.moments = store_->add({record.id, label + " moments", std::move(made.ties[t].moments)});
      record.parts.push_back(tie.moments);
    }
    for (std::size_t s = 0; s < prepared.layouts.size(); ++s) {
      for (std::size_t i = 0; i < prepared.layouts[s].tied.size(); ++i) {
        if (static_cast<std::size_t>(prepared.layouts[s].tied[i].tie) == t) {
          tie.uses.push_back({s, i});
        }
      }
    }
    record.ties.push_back(std::move(tie));
  }
}

void Coordinator::end(JobRecord& record, JobState state, std::exception_ptr failure) {
  if (record.ending) return;  // the first error of a job wins
  record.ending = state;
  record.failure = std::move(failure);
  record.active = false;
  for (Slot& slot : slots_) {
    if (slot.next && slot.next->job == record.id) give_up_next(slot);
  }
  record.updates_outstanding -= static_cast<std::int64_t>(record.pending_updates.size());
  record.pending_updates.clear();
  close_loader(record);
}

// A data source may take its time; the coordinator does not wait for it.
void Coordinator::close_loader(JobRecord& record) {
  if (record.loader == nullptr || record.loader_stops) return;
  record.loader_stops = true;
  ++record.in_flight;
  record.loader->stop([inbox = inbox_, job = record.id] { inbox->push(LoaderClosed{job}); });
}

void Coordinator::seal_if_done(JobRecord& record) {
  if (!record.active || record.ending) return;
  if (record.step < record.end_step || waits_for_callback(record)) return;
  if (record.updates_outstanding > 0 || record.undrained > 0 || !record.flying.empty()) return;
  record.active = false;
  record.sealing = true;
  close_loader(record);
}

// The final values are read after the last update: homes that a device has overtaken come back
// first.
void Coordinator::start_sealing(JobRecord& record) {
  bool settled = true;
  for (const PartId part : record.parts) {
    settled = store_->settle(part) && store_->idle(part) && settled;
  }
  if (!settled || record.in_flight > 0) return;
  std::vector<FinalShard> shards;
  for (ShardRecord& shard : record.shards) {
    FinalShard final;
    if (shard.trainable.valid()) final.trainable = store_->take_home(shard.trainable);
    if (shard.frozen.valid()) final.frozen = store_->take_home(shard.frozen);
    if (shard.moments.valid()) store_->remove(shard.moments);
    final.buffers = std::move(shard.buffers[record.present_buffers]);
    shards.push_back(std::move(final));
  }
  std::vector<HostBuffer> ties;
  for (TieRecord& tie : record.ties) {
    ties.push_back(store_->take_home(tie.part));
    if (tie.moments.valid()) store_->remove(tie.moments);
  }
  record.parts.clear();
  record.shards.clear();
  record.ties.clear();
  record.sealing = false;
  ++record.in_flight;
  auto held = std::make_shared<std::pair<std::vector<FinalShard>, std::vector<HostBuffer>>>(
      std::move(shards), std::move(ties));
  job_worker_->submit([this, job = record.id, prepared = record.prepared, held] {
    Sealed done{job, nullptr, "", nullptr};
    try {
      done.weights = std::make_shared<Weights>(
          collect_weights(*prepared, std::move(held->first), std::move(held->second)));
      done.sha256 = parameters_sha256(*prepared, *done.weights);
    } catch (...) {
      done.failure = std::current_exception();
    }
    post(std::move(done));
  });
}

void Coordinator::handle(Sealed& message) {
  JobRecord& record = job(message.job);
  --record.in_flight;
  if (message.failure != nullptr) {
    end(record, JobState::kFailed, message.failure);
    return;
  }
  const std::shared_ptr<JobShared> shared = record.shared;
  if (options_.listener.ended) options_.listener.ended(message.job);
  jobs_.erase(message.job);  // budgets are balanced before anyone is told
  shared->complete(std::move(*message.weights), std::move(message.sha256), options_.clock->now());
}

bool Coordinator::can_be_removed(const JobRecord& record) const {
  if (!record.ending || record.in_flight > 0) return false;
  return std::all_of(record.parts.begin(), record.parts.end(),
                     [&](PartId part) { return store_->idle(part); });
}

void Coordinator::remove_ended_jobs() {
  for (auto& [id, record] : jobs_) {
    seal_if_done(*record);
    if (record->sealing && !record->ending) start_sealing(*record);
  }
  for (auto entry = jobs_.begin(); entry != jobs_.end();) {
    JobRecord& record = *entry->second;
    if (!can_be_removed(record)) {
      ++entry;
      continue;
    }
    for (const PartId part : record.parts) store_->remove(part);
    const std::shared_ptr<JobShared> shared = record.shared;
    const JobState state = *record.ending;
    const std::exception_ptr failure = record.failure;
    if (options_.listener.ended) options_.listener.ended(record.id);
    entry = jobs_.erase(entry);
    shared->fail(state, failure, options_.clock->now());
  }
}

}  // namespace hydra
