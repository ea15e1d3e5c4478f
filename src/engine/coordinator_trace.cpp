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

// A counter per tier, as often as it has changed.
void Coordinator::trace_memory(Nanoseconds now) {
  if (!options_.trace->enabled()) return;
  traced_memory_.resize(slots_.size() + 1, Bytes(-1));
  const auto trace = [&](Bytes& last, const std::string& tier, Bytes in_use) {
    if (std::exchange(last, in_use) == in_use) return;
    TraceEvent event;
    event.kind = TraceEvent::Kind::kCounter;
    event.track = tier + " memory";
    event.category = "memory";
    event.name = event.track;
    event.start = now;
    event.value = static_cast<double>(in_use.count());
    options_.trace->record(std::move(event));
  };
  trace(traced_memory_.back(), "host", options_.host_budget->reserved());
  for (std::size_t d = 0; d < slots_.size(); ++d) {
    trace(traced_memory_[d], slots_[d].device->name(), slots_[d].device->stats().in_use);
  }
}

}  // namespace hydra
