// Parts whose homes are on storage: when the host needs them next, what is read ahead, and the
// weights of completed jobs, which stay there.

#include <algorithm>
#include <utility>

#include "engine/coordinator.h"
#include "engine/job_setup.h"
#include "hydra/io/extent_map.h"

namespace hydra {
namespace {

constexpr double kNever = 1e18;
// How far ahead parts are read: units of each job, and parts of all.
constexpr std::size_t kUnitsAhead = 3;
constexpr std::size_t kPartsAhead = 16;

void append(std::vector<PartId>& parts, PartId part) {
  if (part.valid()) parts.push_back(part);
}

}  // namespace

std::vector<PartId> ValueParts::all() const {
  std::vector<PartId> parts;
  append(parts, trainable);
  append(parts, frozen);
  for (const auto& [tie, part] : ties) parts.push_back(part);
  return parts;
}

std::vector<PartId> KeptWeights::all_parts() const {
  std::vector<PartId> all;
  for (const ValueParts& shard : parts) {
    for (const PartId part : shard.all()) all.push_back(part);
  }
  return all;
}

// When the host needs a part.

PartUse Coordinator::use_of(const JobRecord& record, const NewPart& part) const {
  using Role = NewPart::Role;
  const PreparedJob& prepared = *record.prepared;
  PartUse use;
  use.of_tie = part.role == Role::kTie || part.role == Role::kTieMoments;
  use.index = part.index;
  const bool moments = part.role == Role::kMoments || part.role == Role::kTieMoments;
  const bool frozen =
      part.role == Role::kFrozen || (use.of_tie && prepared.schema.ties[part.index].frozen);
  for (std::size_t u = 0; u < record.program.size(); ++u) {
    const Unit& unit = record.program[u];
    const auto s = static_cast<std::size_t>(unit.shard);
    const auto& tied = prepared.layouts[s].tied;
    const bool named = use.of_tie
                           ? std::any_of(tied.begin(), tied.end(),
                                         [&](const auto& entry) {
                                           return static_cast<std::size_t>(entry.tie) == part.index;
                                         })
                           : s == part.index;
    if (!named) continue;
    if (!moments || prepared.plan.fits_device) use.units.push_back(u);
    if (!frozen && unit.kind != UnitKind::kForward) use.updated_after = u;
  }
  if (prepared.plan.fits_device) use.updated_after.reset();  // its device does that
  if (use.updated_after && prepared.deferred) use.updated_after = record.program.size() - 1;
  return use;
}

// Distances in units of the part's own job, as for devices.
double Coordinator::next_host_use(PartId part) const {
  const JobRecord* record = nullptr;
  const auto owner = jobs_.find(store_->job_of(part));
  if (owner != jobs_.end()) record = owner->second.get();
  if (record == nullptr || record->ending || record->sealing) return kNever;
  const auto found = record->uses.find(part);
  if (found == record->uses.end()) return kNever;
  const PartUse& use = found->second;
  const std::size_t units = record->program.size();
  const auto away = [&](std::size_t unit) {
    return (unit + units - record->next_unit % units) % units;
  };
  std::size_t nearest = 2 * units;
  for (const std::size_t unit : use.units) nearest = std::min(nearest, away(unit));
  if (use.updated_after) {
    const std::size_t after = *use.updated_after;
    const std::int64_t settled =
        use.of_tie ? record->ties[use.index].settled : record->shards[use.index].settled;
    const bool begun = record->next_unit > after;  // the unit that gives its gradient
    if (settled < record->step + (begun ? 1 : 0)) return 0;
    nearest = std::min(nearest, away(after) + 1);
  }
  return static_cast<double>(nearest);
}

// In the order in which they will be needed: updates that are due, then each job's next units and
// the updates after them.
void Coordinator::prefetch_ahead() {
  if (extents_ == nullptr) return;
  std::vector<PartId> wanted;
  for (const PendingUpdate& update : updates_) {
    if (update.claim || !job(update.job).prepared->on_storage) continue;
    for (const PartId part : parts_of(update)) append(wanted, part);
    if (wanted.size() >= kPartsAhead) break;
  }
  for (std::size_t ahead = 0; ahead < kUnitsAhead && wanted.size() < kPartsAhead; ++ahead) {
    for (const auto& [id, record] : jobs_) {
      if (record->active) add_parts_of_unit(*record, record->next_unit + ahead, wanted);
    }
  }
  if (!wanted.empty()) store_->prefetch(wanted);
}

void Coordinator::add_parts_of_unit(const JobRecord& record, std::size_t ahead,
                                    std::vector<PartId>& wanted) const {
  const Unit& unit = record.program[ahead % record.program.size()];
  const ShardRecord& shard = record.shards[static_cast<std::size_t>(unit.shard)];
  for (const PartId part : shard.claimed_parts) {
    const bool on_a_device = std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
      return store_->missing({&part, 1}, slot.id) == Bytes(0);
    });
    if (!on_a_device) wanted.push_back(part);
  }
  const bool updated = unit.kind != UnitKind::kForward && !record.prepared->deferred &&
                       !record.prepared->plan.fits_device;
  if (updated) append(wanted, shard.moments);
}

// Visits of values.

std::vector<ValueParts> Coordinator::value_parts(const JobRecord& record) {
  std::vector<ValueParts> all;
  for (std::size_t s = 0; s < record.shards.size(); ++s) {
    ValueParts parts{record.shards[s].trainable, record.shards[s].frozen, {}};
    for (const auto& use : record.prepared->layouts[s].tied) {
      if (use.use != 0) continue;
      const auto tie = static_cast<std::size_t>(use.tie);
      parts.ties.emplace_back(tie, record.ties[tie].part);
    }
    all.push_back(std::move(parts));
  }
  return all;
}

void Coordinator::start_walk(ValueWalk walk) { walks_.emplace(next_walk_++, std::move(walk)); }

bool Coordinator::advance_walks() {
  bool any = false;
  for (auto& [id, walk] : walks_) any = advance_walk(id, walk) || any;
  return any;
}

bool Coordinator::advance_walk(WalkId id, ValueWalk& walk) {
  if (walk.working) return false;
  const ValueParts& parts = walk.parts[walk.next];
  if (!walk.claim) walk.claim = store_->open_host_claim(parts.all());
  if (store_->advance(*walk.claim) != ShardStore::ClaimState::kReady) return false;
  ShardValues values;
  const auto data = [&](PartId part) { return store_->host_data(*walk.claim, part); };
  if (parts.trainable.valid()) values.trainable = data(parts.trainable);
  if (parts.frozen.valid()) values.frozen = data(parts.frozen);
  for (const auto& [tie, part] : parts.ties) values.ties[tie] = data(part);
  if (!walk.buffers.empty()) values.buffers = walk.buffers[walk.next];
  walk.working = true;
  if (JobRecord* record = find(walk.job)) ++record->in_flight;
  job_worker_->submit([this, id, values, shard = walk.next, prepared = walk.prepared,
                       digest = walk.digest, reading = walk.reading] {
    ShardVisited done{id, nullptr};
    try {
      if (digest != nullptr) add_to_digest(*prepared, shard, values, *digest);
      if (reading != nullptr) copy_values(*prepared, shard, values, reading->weights);
    } catch (...) {
      done.failure = std::current_exception();
    }
    post(std::move(done));
  });
  return true;
}

void Coordinator::handle(ShardVisited& message) {
  ValueWalk& walk = walks_.at(message.walk);
  walk.working = false;
  store_->close_host_claim(*std::exchange(walk.claim, std::nullopt));
  JobRecord* record = find(walk.job);
  if (record != nullptr) --record->in_flight;
  if (walk.failure == nullptr) walk.failure = message.failure;
  if (walk.failure == nullptr && ++walk.next < walk.parts.size()) return;
  const ValueWalk ended = std::move(walk);
  walks_.erase(message.walk);
  if (ended.reading != nullptr) {
    tell(*ended.reading, ended.failure);
  } else if (record != nullptr && ended.failure == nullptr) {
    record->digested = true;
  } else if (record != nullptr) {
    end(*record, JobState::kFailed, ended.failure);
  }
}

void Coordinator::tell(WeightsReading& reading, const std::exception_ptr& failure) {
  if (failure != nullptr) {
    reading.done.set_exception(failure);
  } else {
    reading.done.set_value(std::move(reading.weights));
  }
}

// One that is at work ends when it has come back.
void Coordinator::drop_walks_of(JobId job, const std::exception_ptr& failure) {
  for (auto entry = walks_.begin(); entry != walks_.end();) {
    ValueWalk& walk = entry->second;
    if (walk.job == job) walk.failure = failure;
    if (walk.job != job || walk.working) {
      ++entry;
      continue;
    }
    if (walk.claim) store_->close_host_claim(*walk.claim);
    if (walk.reading != nullptr) tell(*walk.reading, failure);
    entry = walks_.erase(entry);
  }
}

// Weights of completed jobs.

Weights Coordinator::read_weights(Inbox<Message>& inbox, JobId job, const PreparedJob& prepared) {
  const InvalidArgument gone(
      "the weights of job \"" + prepared.options.name +
      "\" are on storage, which has gone with its runtime: read them before");
  auto reading = std::make_shared<WeightsReading>();
  reading->weights = empty_weights(prepared.schema);
  std::future<Weights> weights = reading->done.get_future();
  if (!inbox.push(ReadWeights{job, std::move(reading)})) throw gone;
  try {
    return weights.get();
  } catch (const std::future_error&) {  // the coordinator has ended instead of answering
    throw gone;
  }
}

void Coordinator::handle(ReadWeights& message) {
  const auto found = kept_.find(message.job);
  if (stopping_ || found == kept_.end()) return;  // its promise is broken
  KeptWeights& kept = found->second;
  if (kept.lost != nullptr) {
    tell(*message.reading, kept.lost);
    return;
  }
  ValueWalk walk;
  walk.job = message.job;
  walk.prepared = kept.prepared;
  walk.parts = kept.parts;
  for (const HostBuffer& buffers : kept.buffers) walk.buffers.push_back(buffers.data());
  walk.reading = std::move(message.reading);
  start_walk(std::move(walk));
}

// Returns what they hold of host memory: the buffers, which are not on storage.
Bytes Coordinator::keep_weights(JobRecord& record) {
  KeptWeights kept;
  Bytes in_host;
  kept.prepared = record.prepared;
  kept.parts = value_parts(record);
  for (ShardRecord& shard : record.shards) {
    kept.buffers.push_back(std::move(shard.buffers[record.present_buffers]));
    in_host += kept.buffers.back().size();
  }
  Bytes held;
  for (const PartId part : kept.all_parts()) {
    held += store_->bytes(part).rounded_up(kExtentAlignment);
  }
  kept.storage = record.storage.split(held);
  kept_.emplace(record.id, std::move(kept));
  return in_host;
}

void Coordinator::kept_part_failed(KeptWeights& kept, JobId job, const TransferDone& done) {
  options_.log->log(LogLevel::kWarning, store_->label(done.part) + ": " + message_of(done.failure));
  // What cannot be written would fill host memory for good.
  if (done.retried) kept.lost = done.failure;
  drop_walks_of(job, done.failure);
}

void Coordinator::handle(WeightsReleased& message) {
  const auto kept = kept_.find(message.job);
  if (kept != kept_.end()) {
    kept->second.released = true;  // its buffers go with it
  } else {
    held_.erase(message.job);
  }
}

void Coordinator::remove_released_weights() {
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    auto& [job, kept] = *entry++;
    if (!kept.released && kept.lost == nullptr) continue;
    const bool read = std::any_of(walks_.begin(), walks_.end(),
                                  [id = job](const auto& walk) { return walk.second.job == id; });
    if (read || !all_idle(kept.all_parts())) continue;
    for (const PartId part : kept.all_parts()) store_->remove(part);
    kept.parts.clear();
    kept.storage.release();
    if (!kept.released) continue;
    held_.erase(job);
    kept_.erase(JobId(job));
  }
}

}  // namespace hydra
