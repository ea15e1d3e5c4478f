#include "residency/home_store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hydra/core/check.h"
#include "hydra/core/error.h"

namespace hydra {

HomeStore::HomeStore(ShardStore::Storage storage, ShardStore::Post post, bool evict_at_once)
    : storage_(storage), post_(std::move(post)), evict_at_once_(evict_at_once) {
  HYDRA_CHECK(storage.extents == nullptr || (storage.host != nullptr && storage.arena != nullptr),
              "a storage tier needs host memory beside it");
}

HomeStore::Home& HomeStore::home(PartId part) {
  const auto found = homes_.find(part);
  HYDRA_CHECK(found != homes_.end(), "no such part: " + std::to_string(part.value()));
  return found->second;
}

const HomeStore::Home& HomeStore::home(PartId part) const {
  return const_cast<HomeStore*>(this)->home(part);
}

HomeStore::Pin& HomeStore::pin(PinId pin) {
  const auto found = pins_.find(pin);
  HYDRA_CHECK(found != pins_.end(), "no such pin: " + std::to_string(pin.value()));
  return found->second;
}

const HomeStore::Pin& HomeStore::pin(PinId pin) const {
  return const_cast<HomeStore*>(this)->pin(pin);
}

Bytes HomeStore::capacity() const {
  return storage_.extents == nullptr ? Bytes(0) : storage_.host->capacity();
}

void HomeStore::add(PartId part, const std::string& label, HostBuffer bytes, bool on_storage) {
  Home home;
  home.label = label;
  home.size = bytes.size();
  home.buffer = std::move(bytes);
  if (on_storage) {
    HYDRA_CHECK(storage_.extents != nullptr, label + ": there is no storage tier");
    home.extent = storage_.extents->allocate(home.size, label);
    if (!home.extent) {
      throw StorageError(false, label + " needs " + to_string(home.size) +
                                    " of storage: " + to_string(storage_.extents->used()) + " of " +
                                    to_string(storage_.extents->capacity()) +
                                    " are taken: raise the storage size");
    }
    home.state = HostState::kDirty;  // its extent gets its bytes when it has to leave
  }
  Home& added = homes_.emplace(part, std::move(home)).first->second;
  rest(part, added);
}

void HomeStore::remove(PartId part) {
  Home& leaving = home(part);
  HYDRA_CHECK(leaving.pins == 0 && leaving.wanted == 0 && !leaving.moving(),
              leaving.label + " is in use");
  if (leaving.extent) storage_.extents->free(*leaving.extent);
  homes_.erase(part);
  serve();
}

HostBuffer HomeStore::take(PartId part) {
  HostBuffer buffer = std::move(home(part).buffer);
  remove(part);
  return buffer;
}

HostBuffer HomeStore::take(PinId id, PartId part) {
  Pin& held = pin(id);
  Home& leaving = home(part);
  HYDRA_CHECK(state(id) == PinState::kReady && contains(held.parts, part),
              leaving.label + " is not held");
  std::erase(held.parts, part);
  --leaving.pins;
  HostBuffer buffer = std::move(leaving.buffer);
  remove(part);
  return buffer;
}

// Pins.

HomeStore::PinId HomeStore::pin(std::vector<PartId> parts, Intent intent, Bytes room) {
  const PinId id(next_pin_++);
  for (const PartId part : parts) ++home(part).wanted;
  pins_.emplace(id, Pin{std::move(parts), intent, room, {}, PinState::kWaiting});
  waiting_.insert(id);
  serve();
  return id;
}

HomeStore::PinState HomeStore::state(PinId id) const {
  const Pin& asked = pin(id);
  if (asked.state != PinState::kGranted) return asked.state;
  const bool all = std::all_of(asked.parts.begin(), asked.parts.end(),
                               [&](PartId part) { return ready(home(part), asked.intent); });
  return all ? PinState::kReady : PinState::kGranted;
}

bool HomeStore::ready(const Home& home, Intent intent) {
  if (!home.extent) return true;
  switch (intent) {
    case Intent::kReceive:
      return home.state == HostState::kReceiving;
    case Intent::kRead:
      if (home.state == HostState::kWriting && !home.newer_on_device) return true;
      [[fallthrough]];
    case Intent::kWrite:
      return home.state == HostState::kClean || home.state == HostState::kDirty;
  }
  return false;
}

Reservation HomeStore::take_room(PinId id) {
  Pin& held = pin(id);
  HYDRA_CHECK(held.state == PinState::kGranted, "room is taken before it is granted");
  return std::move(held.reservation);
}

void HomeStore::unpin(PinId id) {
  Pin ended = std::move(pin(id));
  pins_.erase(id);
  if (ended.state == PinState::kWaiting) {
    waiting_.erase(id);
    for (const PartId part : ended.parts) --home(part).wanted;
  } else if (ended.state == PinState::kGranted) {
    ended.reservation.release();
    let_go(ended);
  }
  serve();
}

// Whoever needs no new room passes; room is made for the oldest alone. It cannot be starved by
// those that pass: what they hold was there before and goes when they end, and each copy that is
// held by nobody for a moment goes at once if it is needed.
void HomeStore::serve() {
  bool oldest = true;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const PinId id = *next++;
    Pin& asked = pin(id);
    const Bytes needed = room_needed(asked);
    if (needed > Bytes(0)) {
      if (!oldest) continue;
      if (!make_room(needed, asked.parts)) {
        oldest = false;
        continue;
      }
    }
    if (!grant(asked)) oldest = false;
    if (asked.state != PinState::kWaiting) waiting_.erase(id);
  }
}

Bytes HomeStore::room_needed(const Pin& asked) const {
  Bytes needed = asked.room;
  for (const PartId part : asked.parts) {
    if (home(part).state == HostState::kAbsent) needed += home(part).size;
  }
  return needed;
}

// False when somebody outside has taken the room.
bool HomeStore::grant(Pin& asked) {
  std::optional<Reservation> reservation;
  const Bytes needed = room_needed(asked);
  if (needed > Bytes(0)) {
    reservation = storage_.host->try_reserve(needed);
    if (!reservation) return false;
  }
  for (const PartId part : asked.parts) --home(part).wanted;
  std::vector<HostBuffer> buffers;
  try {
    for (const PartId part : asked.parts) {
      const Home& wanted = home(part);
      if (wanted.state != HostState::kAbsent) continue;
      Reservation share = reservation ? reservation->split(wanted.size) : Reservation();
      buffers.push_back(storage_.arena->allocate(std::move(share)));
    }
  } catch (const Error&) {
    asked.state = PinState::kLost;
    ++home(asked.parts.front()).unheard;
    post_({asked.parts.front(), DeviceId(), std::current_exception()});
    return true;
  }
  if (reservation) asked.reservation = std::move(*reservation);
  hold(asked, std::move(buffers));
  return true;
}

void HomeStore::hold(Pin& asked, std::vector<HostBuffer> buffers) {
  asked.state = PinState::kGranted;
  auto buffer = buffers.begin();
  for (const PartId part : asked.parts) {
    Home& held = home(part);
    ++held.pins;
    if (held.state != HostState::kAbsent) {
      hurry(held, asked.intent);
      continue;
    }
    held.buffer = std::move(*buffer++);
    if (held.newer_on_device) {
      held.state = HostState::kReceiving;
    } else {
      start_read(part, held, kDemand);
    }
  }
}

// What a prefetch or an eviction ahead of time had begun is waited for now.
void HomeStore::hurry(const Home& home, Intent intent) {
  if (!home.request || (home.state == HostState::kWriting && intent == Intent::kRead)) return;
  storage_.extents->set_priority(*home.request, kDemand);
}

void HomeStore::let_go(Pin& ended) {
  for (const PartId part : ended.parts) {
    Home& held = home(part);
    --held.pins;
    rest(part, held);
  }
}

// Bytes that change.

void HomeStore::written(PartId part) {
  Home& changed = home(part);
  if (!changed.extent) return;
  HYDRA_CHECK(changed.pins > 0 && ready(changed, Intent::kWrite),
              changed.label + " was written while it was not held");
  changed.state = HostState::kDirty;
}

void HomeStore::overtaken(PartId part) {
  Home& old = home(part);
  if (!old.extent) return;
  old.newer_on_device = true;
  if (old.request || old.state == HostState::kAbsent) return;
  make_way(old);
  serve();
}

void HomeStore::received(PartId part) {
  Home& current = home(part);
  if (!current.extent) return;
  HYDRA_CHECK(current.state == HostState::kReceiving, current.label + " was not waited for");
  current.newer_on_device = false;
  current.state = HostState::kDirty;
}

// Requests.

void HomeStore::start_read(PartId part, Home& home, std::int64_t priority) {
  home.state = HostState::kReading;
  home.request = storage_.extents->read(*home.extent, home.buffer.data(), priority);
  requests_.emplace(*home.request, part);
  ++counters_.storage_reads;
  counters_.storage_read_bytes += home.size;
}

void HomeStore::start_write(PartId part, Home& home, std::int64_t priority) {
  home.state = HostState::kWriting;
  home.request = storage_.extents->write(*home.extent, home.buffer.data(), priority);
  requests_.emplace(*home.request, part);
  ++counters_.storage_writes;
  counters_.storage_written_bytes += home.size;
}

std::optional<TransferDone> HomeStore::finish(const ExtentStore::Done& done) {
  const auto found = requests_.find(done.request);
  HYDRA_CHECK(found != requests_.end(), "no such request: " + std::to_string(done.request));
  const PartId part = found->second;
  requests_.erase(found);
  storage_.extents->finish(done);
  Home& moved = home(part);
  moved.request.reset();
  std::optional<TransferDone> failed;
  if (moved.newer_on_device) {
    make_way(moved);
  } else if (moved.state == HostState::kReading) {
    failed = end_read(part, moved, done.failure);
  } else {
    failed = end_write(part, moved, done.failure);
  }
  serve();
  return failed;
}

std::optional<TransferDone> HomeStore::end_read(PartId part, Home& home,
                                                std::exception_ptr failure) {
  if (failure == nullptr) {
    home.state = HostState::kClean;
    rest(part, home);
    return std::nullopt;
  }
  drop(home);
  if (!lose_pins_of(part)) return std::nullopt;  // whoever comes to need it reads it again
  return TransferDone{part, DeviceId(), std::move(failure)};
}

std::optional<TransferDone> HomeStore::end_write(PartId part, Home& home,
                                                 std::exception_ptr failure) {
  if (failure == nullptr) {
    home.failed_writes = 0;
    home.state = HostState::kClean;
    rest(part, home);
    return std::nullopt;
  }
  if (++home.failed_writes < kMostWrites) {
    start_write(part, home, kDemand);
    return std::nullopt;
  }
  home.state = HostState::kDirty;
  return TransferDone{part, DeviceId(), std::move(failure), true};
}

bool HomeStore::lose_pins_of(PartId part) {
  bool any = false;
  for (auto& [id, held] : pins_) {
    if (held.state != PinState::kGranted || !contains(held.parts, part)) continue;
    held.state = PinState::kLost;
    held.reservation.release();
    let_go(held);
    any = true;
  }
  return any;
}

}  // namespace hydra
