#include <utility>

#include "engine/coordinator.h"

namespace hydra {
namespace {

constexpr Nanoseconds kShortestWait(1000);  // shorter ones are the coordinator's own time

const char* name_of(Activity activity) {
  switch (activity) {
    case Activity::kTransfer:
      return "wait for transfer";
    case Activity::kUnit:
      return "wait for another unit";
    case Activity::kInput:
      return "wait for input";
    case Activity::kBusy:
    case Activity::kIdle:
      break;
  }
  return "idle";
}

}  // namespace

void Coordinator::trace_task(const char* track, const char* category, const std::string& name,
                             Nanoseconds start) {
  if (!options_.trace->enabled()) return;
  TraceEvent event;
  event.track = track;
  event.category = category;
  event.name = name;
  event.start = start;
  event.duration = options_.clock->now() - start;
  options_.trace->record(std::move(event));
}

void Coordinator::trace_wait(const Slot& slot, const DeviceUse::Ended& ended, Nanoseconds now) {
  if (!options_.trace->enabled() || ended.activity == Activity::kBusy) return;
  if (now - ended.since < kShortestWait) return;
  TraceEvent event;
  event.track = slot.device->name() + " compute";
  event.category = "wait";
  event.name = name_of(ended.activity);
  event.start = ended.since;
  event.duration = now - ended.since;
  options_.trace->record(std::move(event));
}

// A counter per tier and drive, as often as it has changed.
void Coordinator::trace_counters(Nanoseconds now) {
  if (!options_.trace->enabled()) return;
  const auto trace = [&](const std::string& track, const char* category, std::int64_t value) {
    const auto [last, is_new] = traced_counters_.try_emplace(track, value);
    if (!is_new && std::exchange(last->second, value) == value) return;
    TraceEvent event;
    event.kind = TraceEvent::Kind::kCounter;
    event.track = track;
    event.category = category;
    event.name = track;
    event.start = now;
    event.value = static_cast<double>(value);
    options_.trace->record(std::move(event));
  };
  trace("host memory", "memory", options_.host_budget->reserved().count());
  for (const Slot& slot : slots_) {
    trace(slot.device->name() + " memory", "memory", slot.device->stats().in_use.count());
  }
  if (!extents()) return;
  trace("host cache memory", "memory", options_.host_cache->reserved().count());
  trace("storage memory", "memory", storage_budget_->reserved().count());
  const std::vector<DriveStats> drives = extents()->drive_stats();
  for (std::size_t d = 0; d < drives.size(); ++d) {
    trace("drive " + std::to_string(d) + " queue", "io", drives[d].in_flight);
  }
}

}  // namespace hydra
