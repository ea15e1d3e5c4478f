// How HomeStore makes room in the host: what goes, and in which order.

#include <algorithm>
#include <utility>

#include "hydra/core/error.h"
#include "residency/home_store.h"

namespace hydra {

double HomeStore::distance(PartId part, const Home& home) const {
  return home.wanted > 0 ? 0.0 : next_use_(part);
}

// Copies that can go, the cheapest to lose first, and needed later than `beyond`.
std::vector<HomeStore::Victim> HomeStore::victims(std::span<const PartId> kept,
                                                  double beyond) const {
  std::vector<Victim> found;
  for (const auto& [part, home] : homes_) {
    if (!home.extent || home.pins > 0 || contains(kept, part)) continue;
    const bool dirty = home.state == HostState::kDirty;
    if (home.state != HostState::kClean && !dirty) continue;
    if (dirty && home.failed_writes >= kMostWrites) continue;
    const double away = distance(part, home);
    if (away <= beyond) continue;
    // Per byte of room: one to read again, and one to write if it is dirty.
    found.push_back({part, (dirty ? 2.0 : 1.0) / (1.0 + away)});
  }
  std::sort(found.begin(), found.end(), [](const Victim& a, const Victim& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.part < b.part;
  });
  return found;
}

// What writes under way are about to make droppable.
Bytes HomeStore::coming_room(std::span<const PartId> kept) const {
  Bytes total;
  for (const auto& [request, part] : requests_) {
    const Home& moving = home(part);
    if (moving.state != HostState::kWriting || moving.pins > 0 || contains(kept, part)) continue;
    total += moving.size;
  }
  return total;
}

// For a demand: drops, and starts to write, as much as is needed; true when the room is there.
bool HomeStore::make_room(Bytes needed, std::span<const PartId> kept) {
  Bytes coming = storage_.host->available();
  if (coming >= needed) return true;
  for (const auto& [request, part] : requests_) {
    if (home(part).state == HostState::kWriting) storage_.extents->set_priority(request, kDemand);
  }
  coming += coming_room(kept);
  if (coming >= needed) return false;
  for (const Victim& victim : victims(kept, -1)) {
    if (coming >= needed) break;
    coming += home(victim.part).size;
    evict(victim.part, kDemand);
  }
  return storage_.host->available() >= needed;
}

// For a prefetch: the same out of what is needed later than it, or not at all.
bool HomeStore::make_room_beyond(Bytes needed, double distance) {
  Bytes coming = storage_.host->available();
  if (coming >= needed) return true;
  coming += coming_room({});
  if (coming >= needed) return false;
  std::vector<PartId> chosen;
  for (const Victim& victim : victims({}, distance)) {
    if (coming >= needed) break;
    coming += home(victim.part).size;
    chosen.push_back(victim.part);
  }
  if (coming < needed) return false;
  for (const PartId part : chosen) evict(part, kAhead);
  return storage_.host->available() >= needed;
}

void HomeStore::evict(PartId part, std::int64_t priority) {
  Home& losing = home(part);
  if (losing.state == HostState::kDirty) {
    start_write(part, losing, priority);
    return;
  }
  drop(losing);
  ++counters_.host_evictions;
}

// Room is looked for as if those before had taken theirs, so that the first is the first to get it
// and enough is written ahead for all.
void HomeStore::prefetch(std::span<const PartId> parts) {
  if (evict_at_once_ || !waiting_.empty()) return;
  Bytes before;
  for (const PartId part : parts) {
    Home& wanted = home(part);
    if (wanted.state != HostState::kAbsent || wanted.newer_on_device) continue;
    const bool room = make_room_beyond(before + wanted.size, distance(part, wanted));
    if (!room || !start_ahead(part, wanted)) before += wanted.size;
  }
}

bool HomeStore::start_ahead(PartId part, Home& home) {
  auto reservation = storage_.host->try_reserve(home.size);
  if (!reservation) return false;
  try {
    home.buffer = storage_.arena->allocate(std::move(*reservation));
  } catch (const Error&) {
    return false;  // whoever needs it asks again and is told
  }
  start_read(part, home, kAhead);
  return true;
}

// What becomes of a host copy that nothing holds or moves.
void HomeStore::rest(PartId part, Home& home) {
  if (!home.extent || home.pins > 0 || home.request) return;
  if (home.state == HostState::kReceiving) drop(home);
  if (!evict_at_once_) return;
  if (home.state == HostState::kClean) drop(home);
  if (home.state == HostState::kDirty && home.failed_writes < kMostWrites) {
    start_write(part, home, kAhead);
  }
}

void HomeStore::make_way(Home& home) {
  home.state = HostState::kReceiving;
  if (home.pins == 0) drop(home);
}

void HomeStore::drop(Home& home) {
  home.buffer.release();
  home.state = HostState::kAbsent;
}

}  // namespace hydra
