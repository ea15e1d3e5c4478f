#include <algorithm>
#include <utility>

#include "engine/coordinator.h"

namespace hydra {
// Jobs are admitted in the order of submission: the state of all admitted jobs, what handles of
// finished jobs hold, and the largest step among them must fit the host budget together, so that
// one of them can always make its step.
void Coordinator::admit_jobs() {
  Bytes states = held_by_handles();
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
    bool admitted = false;
    if (!guarded(*record, [&] { admitted = admit(*record, states, step); })) continue;
    if (!admitted) {
      tell_waiting_for_memory(*record, states);
      return;
    }
    states += prepared.state_bytes;
    largest_step = step;
  }
}

bool Coordinator::admit(JobRecord& record, Bytes states, Bytes step) {
  const PreparedJob& prepared = *record.prepared;
  if (states + prepared.state_bytes + step > options_.host_budget->capacity()) return false;
  std::optional<Reservation> storage = Reservation();
  if (prepared.on_storage) storage = storage_budget_->try_reserve(prepared.storage_bytes);
  if (!storage) return false;
  auto memory = options_.host_budget->try_reserve(prepared.state_bytes);
  if (!memory) return false;
  record.storage = std::move(*storage);
  begin_initialisation(record, std::move(*memory));
  return true;
}

Bytes Coordinator::held_by_handles() const {
  Bytes held;
  for (const auto& [id, weights] : held_) held += weights.bytes;
  return held;
}

std::string Coordinator::names_of_held() const {
  constexpr std::size_t kNamed = 4;
  std::string names;
  std::size_t named = 0;
  for (const auto& [id, weights] : held_) {
    if (named++ == kNamed) return names + " and others";
    names += (named > 1 ? ", " : "") + ("\"" + weights.name + "\"");
  }
  return names;
}

// What running jobs hold comes back by itself; what finished jobs' handles hold does not, so it is
// told apart, and louder once there is nothing else to wait for.
void Coordinator::tell_waiting_for_memory(JobRecord& record, Bytes states) {
  const bool others_run = std::any_of(jobs_.begin(), jobs_.end(),
                                      [](const auto& entry) { return entry.second->admitted; });
  const PreparedJob& prepared = *record.prepared;
  const auto free_of = [](const TierBudget& budget) {
    return to_string(budget.available()) + " of " + to_string(budget.capacity()) + " are free";
  };
  std::string text = "waits for " + to_string(prepared.state_bytes) + " of host memory and " +
                     to_string(prepared.step_bytes) +
                     " for a step: " + free_of(*options_.host_budget);
  if (prepared.on_storage) {
    text += "; and for " + to_string(prepared.storage_bytes) +
            " of storage: " + free_of(*storage_budget_);
  }
  const Bytes held = held_by_handles();
  if (others_run) text += "; running jobs hold " + to_string(states - held) + " of state";
  if (!held_.empty()) {
    text += "; " + to_string(held) + " are the weights of the finished jobs " + names_of_held() +
            ", which live as long as a handle to them does: drop the handles, or raise host_memory";
  }
  if (text == record.waits_for) return;
  const bool first = record.waits_for.empty();
  record.waits_for = text;
  record.shared->wait_for(text);
  if (first || !others_run) {
    options_.log->log(others_run ? LogLevel::kInfo : LogLevel::kWarning,
                      "job \"" + record.shared->name() + "\" " + text);
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
  drop_updates(record);
  drop_walks_of(record.id, record.failure);
  if (record.initialisation && record.initialisation->room) {
    store_->close_host_claim(*std::exchange(record.initialisation->room, std::nullopt));
  }
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

// The final values are read after the last update, shard by shard, into the digest; the claims that
// do so bring back what devices have newer.
void Coordinator::seal(JobRecord& record) {
  if (record.digested) {
    finish_sealing(record);
    return;
  }
  if (record.digest != nullptr || record.in_flight > 0) return;
  record.digest = std::make_shared<Sha256>();
  ValueWalk walk;
  walk.job = record.id;
  walk.prepared = record.prepared;
  walk.parts = value_parts(record);
  walk.digest = record.digest;
  start_walk(std::move(walk));
}

void Coordinator::finish_sealing(JobRecord& record) {
  if (record.in_flight > 0 || !all_idle(record.parts)) return;
  for (const ShardRecord& shard : record.shards) {
    if (shard.moments.valid()) store_->remove(shard.moments);
  }
  for (const TieRecord& tie : record.ties) {
    if (tie.moments.valid()) store_->remove(tie.moments);
  }
  const JobId id = record.id;
  const std::shared_ptr<JobShared> shared = record.shared;
  const bool on_storage = record.prepared->on_storage;
  const JobState state = record.stopping ? JobState::kStopped : JobState::kCompleted;
  std::string sha256 = record.digest->hex_digest();
  FinalWeights final;
  if (on_storage) {
    final.host_bytes = keep_weights(record);
  } else {
    final = take_weights(record);
  }
  held_[id] = {shared->name(), final.host_bytes};
  if (options_.listener.ended) options_.listener.ended(id);
  jobs_.erase(id);  // budgets are balanced before anyone is told
  const Nanoseconds now = options_.clock->now();
  bool wanted = false;
  if (on_storage) {
    wanted = shared->complete_on_storage(state, std::move(sha256), now);
    kept_.at(id).released = !wanted;
  } else {
    wanted = shared->complete(state, std::move(final.weights), std::move(sha256), now);
  }
  if (!wanted) held_.erase(id);
}

Coordinator::FinalWeights Coordinator::take_weights(JobRecord& record) {
  Bytes held;
  const auto counted = [&](HostBuffer buffer) {
    held += buffer.size();
    return buffer;
  };
  std::vector<FinalShard> shards;
  for (ShardRecord& shard : record.shards) {
    FinalShard final;
    if (shard.trainable.valid()) final.trainable = counted(store_->take_home(shard.trainable));
    if (shard.frozen.valid()) final.frozen = counted(store_->take_home(shard.frozen));
    final.buffers = counted(std::move(shard.buffers[record.present_buffers]));
    shards.push_back(std::move(final));
  }
  std::vector<HostBuffer> ties;
  for (const TieRecord& tie : record.ties) ties.push_back(counted(store_->take_home(tie.part)));
  return {collect_weights(*record.prepared, std::move(shards), std::move(ties)), held};
}

bool Coordinator::all_idle(const std::vector<PartId>& parts) const {
  return std::all_of(parts.begin(), parts.end(), [&](PartId part) { return store_->idle(part); });
}

void Coordinator::remove_ended_jobs() {
  for (auto entry = jobs_.begin(); entry != jobs_.end();) {
    JobRecord& record = *(entry++)->second;  // it may go
    seal_if_done(record);
    if (record.ending) {
      remove_if_idle(record);
    } else if (record.sealing) {
      seal(record);
    }
  }
  remove_released_weights();
}

void Coordinator::remove_if_idle(JobRecord& record) {
  if (record.in_flight > 0 || !all_idle(record.parts)) return;
  for (const PartId part : record.parts) store_->remove(part);
  const std::shared_ptr<JobShared> shared = record.shared;
  const JobState state = *record.ending;
  const std::exception_ptr failure = record.failure;
  if (options_.listener.ended) options_.listener.ended(record.id);
  jobs_.erase(record.id);
  shared->fail(state, failure, options_.clock->now());
}

}  // namespace hydra
