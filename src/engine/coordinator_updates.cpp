#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/coordinator.h"
#include "hydra/core/check.h"

namespace hydra {
namespace {

float* floats(std::byte* base, Bytes offset) {
  return reinterpret_cast<float*>(base + offset.size());
}

/// One parameter's share of an update task.
struct UpdateItem {
  ParameterMemory memory;
  ParameterState state;
};

}  // namespace

// The gradients of one shard are on the host.
void Coordinator::gradients_arrived(JobRecord& record, const InFlight& flight) {
  const std::size_t s = static_cast<std::size_t>(flight.unit.shard);
  ShardRecord& shard = record.shards[s];
  shard.touched = flight.outcome->touched;
  shard.touched_tied = flight.outcome->touched_tied;
  shard.square_sums = flight.outcome->square_sums;
  if (!record.squares) record.squares.emplace(record.prepared->schema);
  record.squares->set(record.prepared->layouts[s], shard.square_sums);
  ++record.gradients_arrived;
  if (!record.prepared->deferred) {
    const bool finite = std::all_of(shard.square_sums.begin(), shard.square_sums.end(),
                                    [](double sum) { return std::isfinite(sum); });
    if (!finite) {
      end(record, JobState::kFailed,
          std::make_exception_ptr(NonFinite(
              "a gradient of shard " + std::to_string(s) + ", step " + std::to_string(flight.step) +
              " is not finite: lower the learning rate or clip the gradient norm")));
      return;
    }
    plan_update(record, false, s, flight.step, 1.0F);
  }
  for (std::size_t t = 0; t < record.ties.size(); ++t) {
    TieRecord& tie = record.ties[t];
    if (tie.frozen) continue;
    const std::int64_t before = tie.arrived;
    for (const TieRecord::Use& use : tie.uses) tie.arrived += use.shard == s ? 1 : 0;
    if (tie.arrived > before && tie.arrived == static_cast<std::int64_t>(tie.uses.size())) {
      record.update_step = flight.step;
      combine_tie(record, t);
    }
  }
  record.update_step = flight.step;
  update_when_complete(record);
}

void Coordinator::combine_tie(JobRecord& record, std::size_t t) {
  TieRecord& tie = record.ties[t];
  tie.arrived = 0;
  std::vector<float*> accumulators;
  std::vector<bool> touched;
  for (const TieRecord::Use& use : tie.uses) {
    ShardRecord& shard = record.shards[use.shard];
    accumulators.push_back(floats(shard.tied_gradients[use.index].data(), Bytes(0)));
    touched.push_back(shard.touched_tied[use.index]);
  }
  ++record.in_flight;
  ++record.updates_outstanding;
  const std::int64_t elements = record.prepared->schema.ties[t].elements;
  const std::string name = record.shared->name() + " add uses of tie " + std::to_string(t);
  pool_->submit([this, job = record.id, t, accumulators, touched, elements, name] {
    const Nanoseconds start = options_.clock->now();
    TieCombined done{job, t, combine_uses(accumulators, touched, elements), 0};
    if (done.gradient != nullptr) done.square_sum = square_sum(done.gradient, elements);
    trace_task("host updates", "update", name, start);
    post(std::move(done));
  });
}

void Coordinator::handle(TieCombined& message) {
  JobRecord& record = job(message.job);
  --record.in_flight;
  --record.updates_outstanding;
  if (record.ending) return;
  record.ties[message.tie].gradient = message.gradient;
  record.squares->set_tie(static_cast<std::int64_t>(message.tie), message.square_sum);
  ++record.ties_combined;
  if (!record.prepared->deferred) {
    if (!std::isfinite(message.square_sum)) {
      end(record, JobState::kFailed,
          std::make_exception_ptr(NonFinite(
              "the gradient of " + record.prepared->schema.ties[message.tie].full_name + ", step " +
              std::to_string(record.update_step) + " is not finite: lower the learning rate")));
      return;
    }
    plan_update(record, true, message.tie, record.update_step, 1.0F);
  }
  update_when_complete(record);
}

// With the last gradient of a step a deferred job's gradient is whole.
void Coordinator::update_when_complete(JobRecord& record) {
  const std::int64_t expected =
      static_cast<std::int64_t>(record.shards.size()) - record.prepared->first_trainable;
  const std::int64_t ties = std::count_if(record.ties.begin(), record.ties.end(),
                                          [](const TieRecord& tie) { return !tie.frozen; });
  if (record.gradients_arrived < expected || record.ties_combined < ties) return;
  record.gradients_arrived = 0;
  record.ties_combined = 0;
  for (std::int64_t s = 0; s < record.prepared->first_trainable; ++s) {
    ++record.shards[static_cast<std::size_t>(s)].settled;  // nothing to train there
  }
  if (!record.prepared->deferred) {
    record.squares.reset();
  } else if (record.prepared->edits_gradients) {
    edit_gradients(record);
  } else {
    update_with_whole_gradient(record);
  }
}

// The factor of a deferred job is known: its updates are due, in forward order, beside the forward
// pass of the next step.
void Coordinator::update_with_whole_gradient(JobRecord& record) {
  const std::int64_t step = record.update_step;
  const double norm = record.squares->norm();
  record.squares.reset();
  try {
    require_finite_norm(norm, step);
  } catch (...) {
    end(record, JobState::kFailed, std::current_exception());
    return;
  }
  const auto& max_norm = record.prepared->options.max_gradient_norm;
  const float factor = max_norm ? clip_factor(norm, *max_norm) : 1.0F;
  std::vector<bool> planned(record.ties.size(), false);
  for (std::size_t s = 0; s < record.shards.size(); ++s) {
    for (const auto& use : record.prepared->layouts[s].tied) {
      const auto tie = static_cast<std::size_t>(use.tie);
      if (planned[tie] || record.ties[tie].frozen) continue;
      planned[tie] = true;
      plan_update(record, true, tie, step, factor);
    }
    if (static_cast<std::int64_t>(s) >= record.prepared->first_trainable) {
      plan_update(record, false, s, step, factor);
    }
  }
  if (record.unreported) {
    report_step(record, record.unreported->step, record.unreported->loss, norm,
                record.unreported->tokens);
    record.unreported.reset();
  }
}

void Coordinator::plan_update(JobRecord& record, bool of_tie, std::size_t index, std::int64_t step,
                              float factor) {
  ++record.updates_outstanding;
  updates_.push_back({record.id, of_tie, index, record.rates.at(step), factor, std::nullopt});
}

bool Coordinator::start_updates() {
  const std::size_t before = updates_.size();
  std::vector<std::pair<JobRecord*, std::exception_ptr>> failed;  // ending drops from `updates_`
  std::erase_if(updates_, [&](PendingUpdate& update) {
    try {
      return start_update(update);
    } catch (const InternalError&) {
      throw;
    } catch (...) {
      failed.emplace_back(&job(update.job), std::current_exception());
      return false;
    }
  });
  for (const auto& [record, failure] : failed) end(*record, JobState::kFailed, failure);
  return updates_.size() < before;
}

// The parts come to the host as its claim is granted. Of parts on storage only as many sets are
// asked for as are worked on, and one more: the next are read ahead where there is room.
bool Coordinator::start_update(PendingUpdate& update) {
  JobRecord& record = job(update.job);
  std::vector<PartId> parts = parts_of(update);
  if (!parts.empty() && !update.claim) {
    if (record.prepared->on_storage) {
      if (storage_updates_ > options_.update_threads) return false;
      ++storage_updates_;
    }
    update.claim = store_->open_host_claim(std::move(parts));
  }
  if (update.claim && store_->advance(*update.claim) != ShardStore::ClaimState::kReady) {
    return false;
  }
  if (update.of_tie) {
    start_tie_update(record, update);
  } else {
    start_shard_update(record, update);
  }
  return true;
}

std::vector<PartId> Coordinator::parts_of(const PendingUpdate& update) {
  const JobRecord& record = job(update.job);
  std::vector<PartId> parts;
  const auto add = [&](PartId part) {
    if (part.valid()) parts.push_back(part);
  };
  if (update.of_tie) {
    add(record.ties[update.index].part);
    add(record.ties[update.index].moments);
  } else {
    add(record.shards[update.index].trainable);
    add(record.shards[update.index].moments);
  }
  return parts;
}

void Coordinator::drop_updates(JobRecord& record) {
  std::erase_if(updates_, [&](const PendingUpdate& update) {
    if (update.job != record.id) return false;
    end_update(record, update.claim);
    return true;
  });
}

void Coordinator::end_update(JobRecord& record, std::optional<HostClaimId> claim) {
  --record.updates_outstanding;
  if (!claim) return;
  store_->close_host_claim(*claim);
  if (record.prepared->on_storage) --storage_updates_;
}

// Lends what an update changes: the devices' copies go, and the extent's bytes are old.
std::byte* Coordinator::begin_host_write(HostClaimId claim, PartId part) {
  if (!part.valid()) return nullptr;
  store_->mark_host_written(claim, part);
  return store_->host_data(claim, part);
}

void Coordinator::start_shard_update(JobRecord& record, const PendingUpdate& update) {
  ShardRecord& shard = record.shards[update.index];
  const FlatLayout& layout = record.prepared->layouts[update.index];
  const int slots = record.prepared->optimizer->state_slots();
  const JobId id = record.id;
  const std::size_t s = update.index;
  ++record.in_flight;
  if (!shard.trainable.valid()) {
    post(ShardUpdated{id, s, std::nullopt});
    return;
  }
  std::byte* parameters = begin_host_write(*update.claim, shard.trainable);
  std::byte* moments = begin_host_write(*update.claim, shard.moments);
  std::vector<UpdateItem> items;
  for (std::size_t i = 0; i < layout.trainable.size(); ++i) {
    if (!shard.touched[i]) continue;
    const Bytes offset = layout.trainable[i].offset;
    items.push_back({{floats(parameters, offset), floats(shard.gradients.data(), offset),
                      slots > 0 ? floats(moments, offset) : nullptr,
                      slots > 1 ? floats(moments, layout.trainable_bytes + offset) : nullptr,
                      layout.trainable[i].elements},
                     shard.parameters[i]});
    ++shard.parameters[i].updates;
  }
  const std::string name = record.shared->name() + " update shard " + std::to_string(s);
  pool_->submit([this, id, s, prepared = record.prepared, items = std::move(items), update, name] {
    const Nanoseconds start = options_.clock->now();
    for (const UpdateItem& item : items) {
      update_parameter(*prepared->optimizer, item.memory, item.state, update.learning_rate,
                       update.factor);
    }
    trace_task("host updates", "update", name, start);
    post(ShardUpdated{id, s, update.claim});
  });
}

void Coordinator::handle(ShardUpdated& message) {
  JobRecord& record = job(message.job);
  ShardRecord& shard = record.shards[message.shard];
  --record.in_flight;
  ++shard.settled;
  end_update(record, message.claim);
}

void Coordinator::start_tie_update(JobRecord& record, const PendingUpdate& update) {
  TieRecord& tie = record.ties[update.index];
  const JobId id = record.id;
  const std::size_t t = update.index;
  ++record.in_flight;
  const int slots = record.prepared->optimizer->state_slots();
  const Bytes size = tie_bytes(record.prepared->schema, static_cast<std::int64_t>(t));
  std::byte* parameter = begin_host_write(*update.claim, tie.part);
  std::byte* moments = begin_host_write(*update.claim, tie.moments);
  UpdateItem item{
      {floats(parameter, Bytes(0)), tie.gradient, slots > 0 ? floats(moments, Bytes(0)) : nullptr,
       slots > 1 ? floats(moments, size) : nullptr, record.prepared->schema.ties[t].elements},
      tie.state};
  if (tie.gradient != nullptr) ++tie.state.updates;
  const std::string name = record.shared->name() + " update tie " + std::to_string(t);
  pool_->submit([this, id, t, prepared = record.prepared, item, update, name] {
    const Nanoseconds start = options_.clock->now();
    if (item.memory.gradient != nullptr) {
      update_parameter(*prepared->optimizer, item.memory, item.state, update.learning_rate,
                       update.factor);
    }
    trace_task("host updates", "update", name, start);
    post(TieUpdated{id, t, *update.claim});
  });
}

void Coordinator::handle(TieUpdated& message) {
  JobRecord& record = job(message.job);
  TieRecord& tie = record.ties[message.tie];
  --record.in_flight;
  ++tie.settled;
  tie.gradient = nullptr;
  end_update(record, message.claim);
}

}  // namespace hydra
