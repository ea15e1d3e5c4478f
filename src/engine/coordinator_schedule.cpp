#include <algorithm>
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
    if (!slot.running && (!slot.next || !runnable(job(slot.next->job)))) {
      // What was claimed ahead still waits for something: start what can start.
      const bool other = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
        return claimable(*entry.second, slot) && runnable(*entry.second);
      });
      if (other && slot.next) give_up_next(slot);
      if (!other && !slot.next) steal_for(slot);
    }
    if (!slot.next) choose_next(slot);
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

bool Coordinator::runnable(const JobRecord& record) const { return !record.flying; }

// A job has a unit to claim when its step has begun and the parameters that the unit reads have had
// all updates of the steps before. The successor of a unit at work can be claimed by the same
// device.
bool Coordinator::claimable(const JobRecord& record, const Slot& slot) const {
  if (!record.active || !record.step_begun || record.claimed) return false;
  if (record.next_unit >= record.program.size()) return false;
  if (record.flying && record.flying_on != slot.id) return false;
  const Unit& unit = record.program[record.next_unit];
  const ShardRecord& shard = record.shards[index_of(unit.shard)];
  if (unit.kind != UnitKind::kBackward) {
    if (shard.settled < record.step) return false;
    for (const auto& use : record.prepared->layouts[index_of(unit.shard)].tied) {
      const TieRecord& tie = record.ties[index_of(use.tie)];
      if (!tie.frozen && tie.settled < record.step) return false;
    }
  }
  return may_run_on(record, slot);
}

// A job whose state lives on a device stays there while that device has time for it.
bool Coordinator::may_run_on(const JobRecord& record, const Slot& slot) const {
  if (!record.prepared->plan.fits_device || !record.last_device.valid()) return true;
  if (record.last_device == slot.id) return true;
  const Slot& home = slots_[index_of(record.last_device.value())];
  return home.running && home.next;
}

JobView Coordinator::view_of(const JobRecord& record, const Slot& slot) const {
  const Unit& unit = record.program[record.next_unit];
  JobView view;
  view.id = record.id;
  view.priority = record.prepared->options.priority;
  view.remaining = remaining_time(record);
  view.unit = record.times.predict(record.next_unit);
  view.missing = store_->missing(record.shards[index_of(unit.shard)].claimed_parts, slot.id);
  view.last_device = record.last_device;
  view.units_served = record.units_served;
  view.running = !runnable(record);
  return view;
}

void Coordinator::choose_next(Slot& slot) {
  std::vector<JobView> views;
  for (const auto& [id, record] : jobs_) {
    if (claimable(*record, slot)) views.push_back(view_of(*record, slot));
  }
  if (views.empty()) return;
  Decision decision{views.size() - 1, "reversed for a test"};
  if (!options_.reverse_ready_order) {
    const auto chosen = options_.policy->choose({slot.id, views});
    if (!chosen) return;
    decision = *chosen;
  }
  HYDRA_CHECK(decision.job < views.size(), "the policy chose a job that was not offered");
  JobRecord& record = job(views[decision.job].id);
  record.claimed = true;
  const Unit unit = record.program[record.next_unit];
  Assignment assignment;
  assignment.job = record.id;
  assignment.unit = unit;
  assignment.claim = store_->open_claim(slot.id, record.shards[index_of(unit.shard)].claimed_parts);
  assignment.reason = decision.reason;
  slot.next = assignment;
}

void Coordinator::give_up_next(Slot& slot) {
  store_->close_claim(slot.next->claim);
  job(slot.next->job).claimed = false;
  slot.next.reset();
}

// An idle device takes over what a busy one had claimed ahead.
void Coordinator::steal_for(Slot& slot) {
  for (Slot& other : slots_) {
    if (&other == &slot || !other.running || !other.next) continue;
    const JobRecord& record = job(other.next->job);
    if (!runnable(record) || !may_run_on(record, slot)) continue;
    give_up_next(other);
    return;
  }
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
