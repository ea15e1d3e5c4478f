#include <algorithm>
#include <limits>
#include <utility>

#include "engine/coordinator.h"
#include "hydra/core/check.h"

namespace hydra {
namespace {

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

void Coordinator::schedule() {
  admit_jobs();
  begin_steps();
  // Idle devices choose first, so that a busy one does not claim ahead what another could start
  // now.
  for (Slot& slot : slots_) {
    if (!slot.running) serve(slot);
  }
  for (Slot& slot : slots_) {
    if (slot.running) serve(slot);
  }
}

void Coordinator::serve(Slot& slot) {
  if (serve_pilot(slot)) return;
  do {
    if (slot.running && in_flight_.at(*slot.running).alone) return;
    if (!slot.running && (!slot.next || !may_start(*slot.next))) {
      // What was claimed ahead still waits for something: start what can start.
      const bool other = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
        return entry.second->flying.empty() && claimable(*entry.second, slot);
      });
      if (other && slot.next) give_up_next(slot);
      if (!other && !slot.next) steal_for(slot);
    }
    if (!slot.next) choose_next(slot);
    if (!slot.next) roll_on(slot);
  } while (slot.next && try_dispatch(slot));
}

bool Coordinator::serve_pilot(Slot& slot) {
  if (slot.piloting) return true;
  if (slot.pilots.empty()) return false;
  if (slot.next) give_up_next(slot);
  if (slot.running || slot.in_flight > 0 || !store_->clear_device(slot.id)) return true;
  slot.piloting = true;
  slot.device->trim();
  slot.device->submit(
      [this, pilot = std::move(slot.pilots.front()), device = slot.device, id = slot.id] {
        pilot.run(*device);
        post(PilotDone{id});
      });
  slot.pilots.pop_front();
  return true;
}

// A job has a unit to claim when its step has begun and the parameters that the unit reads have had
// all updates of the steps before. The successor of a unit at work can be claimed by the same
// device.
bool Coordinator::claimable(const JobRecord& record, const Slot& slot) const {
  if (!record.active || !record.step_begun || record.claims > 0 || record.rewinding) return false;
  if (record.next_unit >= record.program.size()) return false;
  if (!record.flying.empty() && in_flight_.at(record.flying.back()).device != slot.id) return false;
  return parameters_settled(record, record.program[record.next_unit]) && may_run_on(record, slot);
}

// Backward units read what the forward units of the same step have read.
bool Coordinator::parameters_settled(const JobRecord& record, const Unit& unit) const {
  if (unit.kind == UnitKind::kBackward) return true;
  if (record.shards[index_of(unit.shard)].settled < record.step) return false;
  const auto& tied = record.prepared->layouts[index_of(unit.shard)].tied;
  return std::all_of(tied.begin(), tied.end(), [&](const auto& use) {
    const TieRecord& tie = record.ties[index_of(use.tie)];
    return tie.frozen || tie.settled >= record.step;
  });
}

// A unit follows the one before it micro-batch by micro-batch, so it may start when the first one
// has been handed on. A shard's layers serve one unit at a time.
bool Coordinator::may_start(const Assignment& next) const {
  const JobRecord& record = *jobs_.at(next.job);
  if (next.index != record.next_unit || record.rewinding) return false;
  if (record.shards[index_of(next.unit.shard)].at_work) return false;
  if (record.flying.empty()) return true;
  const InFlight& before = in_flight_.at(record.flying.back());
  return before.index + 1 == next.index && before.begun;
}

// A job whose state lives on a device stays there while that device has time for it.
bool Coordinator::may_run_on(const JobRecord& record, const Slot& slot) const {
  if (!record.prepared->plan.fits_device || !record.last_device.valid()) return true;
  if (record.last_device == slot.id) return true;
  const Slot& home = slots_[index_of(record.last_device.value())];
  return home.running && home.next;
}

JobView Coordinator::view_of(const JobRecord& record, const Slot& slot) const {
  const std::size_t next = record.flying.empty() ? record.next_unit : next_to_roll(record, slot);
  const Unit& unit = record.program[next];
  JobView view;
  view.id = record.id;
  view.priority = record.prepared->options.priority;
  view.remaining = remaining_time(record);
  view.unit = record.times.predict(next);
  view.missing = store_->missing(record.shards[index_of(unit.shard)].claimed_parts, slot.id);
  view.last_device = record.last_device;
  view.units_served = record.units_served;
  view.units_waited = units_given_ - record.last_turn;
  view.running = !record.flying.empty();
  return view;
}

void Coordinator::choose_next(Slot& slot) {
  std::vector<JobRecord*> candidates;
  for (const auto& [id, record] : jobs_) {
    if (claimable(*record, slot)) candidates.push_back(record.get());
  }
  if (const auto choice = choose_among(slot, candidates)) claim(slot, *choice->job, choice->reason);
}

std::optional<Coordinator::Choice> Coordinator::choose_among(
    const Slot& slot, const std::vector<JobRecord*>& candidates) {
  if (candidates.empty()) return std::nullopt;
  std::vector<JobView> views;
  for (const JobRecord* record : candidates) views.push_back(view_of(*record, slot));
  std::optional<Decision> decision = Decision{views.size() - 1, "reversed for a test"};
  if (!options_.reverse_ready_order) decision = ask_policy({slot.id, views});
  if (!decision) return std::nullopt;
  return Choice{candidates[decision->job], decision->reason};
}

// Results do not depend on the order of units, so a policy that fails costs nothing but its order.
std::optional<Decision> Coordinator::ask_policy(const ScheduleView& view) {
  std::string problem;
  try {
    const auto chosen = options_.policy->choose(view);
    if (chosen && chosen->job < view.jobs.size()) return chosen;
    problem = !chosen ? "chose nothing"
                      : "chose job " + std::to_string(chosen->job) + " of " +
                            std::to_string(view.jobs.size());
  } catch (...) {
    problem = "threw: " + message_of(std::current_exception());
  }
  if (!std::exchange(policy_failed_, true)) {
    options_.log->log(LogLevel::kError,
                      "the policy " + problem + "; each time it fails, the oldest job goes first");
  }
  return Decision{0, "the policy failed"};
}

void Coordinator::claim(Slot& slot, JobRecord& record, std::string_view reason) {
  Assignment next;
  next.job = record.id;
  next.index = record.next_unclaimed();
  next.unit = record.program[next.index];
  next.claim = store_->open_claim(slot.id, record.shards[index_of(next.unit.shard)].claimed_parts);
  next.reason = reason;
  ++record.claims;
  slot.next = next;
}

void Coordinator::give_up_next(Slot& slot) { give_up_from(job(slot.next->job), slot.next->index); }

// Claims are of successive units, so later ones go with an earlier one, whoever has them.
void Coordinator::give_up_from(JobRecord& record, std::size_t first) {
  for (Slot& slot : slots_) {
    if (!slot.next || slot.next->job != record.id || slot.next->index < first) continue;
    store_->close_claim(slot.next->claim);
    slot.next.reset();
    --record.claims;
  }
}

// An idle device takes over what a busy one had claimed ahead.
void Coordinator::steal_for(Slot& slot) {
  for (Slot& other : slots_) {
    if (&other == &slot || !other.running || !other.next) continue;
    const JobRecord& record = job(other.next->job);
    if (!record.flying.empty() || !may_run_on(record, slot)) continue;
    give_up_next(other);
    return;
  }
}

// Fewer jobs than devices: a device that finds nothing else takes the next unit of a job that is at
// work elsewhere, so that its shards roll over the devices, each a micro-batch behind the one
// before. Of several jobs it helps one that has the fewest devices.
void Coordinator::roll_on(Slot& slot) {
  std::vector<JobRecord*> candidates;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const auto& [id, record] : jobs_) {
    if (!can_roll(*record, slot)) continue;
    if (record->flying.size() < fewest) candidates.clear();
    fewest = std::min(fewest, record->flying.size());
    if (record->flying.size() == fewest) candidates.push_back(record.get());
  }
  const auto choice = choose_among(slot, candidates);
  if (!choice) return;
  give_up_from(*choice->job, next_to_roll(*choice->job, slot));
  claim(slot, *choice->job, choice->reason);
}

// An idle device may take over what a busy one has claimed ahead; a busy one stays with the job
// that it is at work for.
bool Coordinator::can_roll(const JobRecord& record, const Slot& slot) const {
  if (!record.active || !record.step_begun || record.rewinding || record.flying.empty()) {
    return false;
  }
  if (record.prepared->plan.fits_device || micro_batches(record) < 2) return false;
  if (slot.running && in_flight_.at(*slot.running).job != record.id) return false;
  const std::size_t next = next_to_roll(record, slot);
  return next < record.program.size() && parameters_settled(record, record.program[next]);
}

std::size_t Coordinator::next_to_roll(const JobRecord& record, const Slot& slot) const {
  const std::size_t ahead = slot.running ? record.program.size() : first_claimed_ahead(record);
  return ahead < record.program.size() ? ahead : record.next_unclaimed();
}

// The first of a job's units that busy devices have claimed ahead; the program's size if none.
std::size_t Coordinator::first_claimed_ahead(const JobRecord& record) const {
  std::size_t first = record.program.size();
  for (const Slot& slot : slots_) {
    if (!slot.running || !slot.next || slot.next->job != record.id) continue;
    first = std::min(first, slot.next->index);
  }
  return first;
}

// Distances in units of the part's own job: copies that an update is about to overtake are never
// needed again, the shard that backward comes to next is needed soonest.
double Coordinator::next_use(PartId part) const {
  constexpr double kNever = 1e18;
  const auto found = jobs_.find(store_->job_of(part));
  if (found == jobs_.end() || !found->second->active) return kNever;
  const JobRecord& record = *found->second;
  const std::size_t units = record.program.size();
  for (std::size_t ahead = 0; ahead < units; ++ahead) {
    const std::size_t u = record.next_unit + ahead;
    const ShardRecord& shard = record.shards[index_of(record.program[u % units].shard)];
    const auto& parts = shard.claimed_parts;
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) continue;
    const bool updated_before =
        u >= units && !record.prepared->plan.fits_device && part != shard.frozen;
    return updated_before ? kNever : static_cast<double>(ahead);
  }
  return kNever;
}

}  // namespace hydra
