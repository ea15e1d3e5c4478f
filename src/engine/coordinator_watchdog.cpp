// What debug builds check before the coordinator sleeps: that something will wake it while there
// are jobs. A hang is a fault of the engine, and says so with everything that is known.

#include <algorithm>

#include "engine/coordinator.h"

namespace hydra {
namespace {

/// The job waits for its data source, which may take its time.
bool waits_for_batch(const JobRecord& record) {
  return record.active && !record.step_begun && record.batch == nullptr &&
         record.step < record.end_step;
}

}  // namespace

bool Coordinator::something_can_move() const {
  if (!in_flight_.empty() || store_->transfers_under_way()) return true;
  if (std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.piloting; })) {
    return true;
  }
  if (std::any_of(walks_.begin(), walks_.end(),
                  [](const auto& walk) { return walk.second.working; })) {
    return true;
  }
  const bool job_moves = std::any_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second->in_flight > 0 || waits_for_batch(*entry.second);
  });
  if (job_moves) return true;
  // Jobs that are queued behind what handles of finished ones hold wait for the user.
  const bool all_queued = std::none_of(jobs_.begin(), jobs_.end(),
                                       [](const auto& entry) { return entry.second->admitted; });
  const bool no_pilot = std::all_of(slots_.begin(), slots_.end(),
                                    [](const Slot& slot) { return slot.pilots.empty(); });
  return walks_.empty() && no_pilot &&
         (jobs_.empty() || (all_queued && (!held_.empty() || !kept_.empty())));
}

std::string Coordinator::where_jobs_stand() const {
  std::string text;
  for (const auto& [id, record] : jobs_) {
    text += (text.empty() ? "\"" : "; \"") + record->shared->name() + "\" ";
    if (record->ending || record->sealing) {
      text += "ends";
    } else if (!record->admitted) {
      text += "is queued: " + record->waits_for;
    } else if (!record->active) {
      text += "makes its weights";
    } else {
      text += "is at step " + std::to_string(record->step) + ", unit " +
              std::to_string(record->next_unit) + " of " + std::to_string(record->program.size());
      if (record->memory_ticket > 0) text += ", waits for a step's host memory";
    }
  }
  return text.empty() ? "none; a pilot or a reading of weights waits" : text;
}

}  // namespace hydra
