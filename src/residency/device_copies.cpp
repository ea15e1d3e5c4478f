#include "residency/device_copies.h"

#include <algorithm>
#include <utility>

#include "hydra/core/check.h"
#include "hydra/core/error.h"

namespace hydra {

using Intent = HomeStore::Intent;
using PinState = HomeStore::PinState;

DeviceCopies::DeviceCopies(std::vector<Device*> devices, HomeStore& homes, ShardStore::Post post,
                           bool evict_at_once)
    : devices_(std::move(devices)),
      homes_(homes),
      post_(std::move(post)),
      evict_at_once_(evict_at_once) {
  for (const Device* device : devices_) ledgers_.emplace_back(device->name(), device->budget());
}

bool DeviceCopies::Part::home_is_read() const {
  return std::any_of(copies.begin(), copies.end(), [](const auto& entry) {
    return entry.second.state == State::kFetching || entry.second.state == State::kLoading;
  });
}

DeviceCopies::Part& DeviceCopies::part(PartId part) {
  const auto found = parts_.find(part);
  HYDRA_CHECK(found != parts_.end(), "no such part: " + std::to_string(part.value()));
  return found->second;
}

const DeviceCopies::Part& DeviceCopies::part(PartId part) const {
  return const_cast<DeviceCopies*>(this)->part(part);
}

DeviceCopies::Copy* DeviceCopies::find(PartId id, DeviceId device) {
  Copies& copies = part(id).copies;
  const auto found = copies.find(device);
  return found == copies.end() ? nullptr : &found->second;
}

const DeviceCopies::Copy* DeviceCopies::find(PartId id, DeviceId device) const {
  return const_cast<DeviceCopies*>(this)->find(id, device);
}

const TierBudget& DeviceCopies::ledger(DeviceId device) const { return ledgers_.at(index(device)); }

// What claims see.

DeviceCopies::Hold DeviceCopies::hold(PartId id, DeviceId device_id) {
  if (Copy* copy = find(id, device_id)) {
    if (copy->outdated) return 0;  // it goes when it has landed
    if (copy->waits_to_leave()) release_pin(*copy);
    ++copy->claims;
    return copy->name;
  }
  if (!settle(id)) return 0;
  auto reservation = grant(device_id, device(device_id).allocation_size(part(id).size));
  if (!reservation) {
    homes_.prefetch({&id, 1});
    return 0;
  }
  Copy copy;
  copy.reservation = std::move(*reservation);
  copy.claims = 1;
  copy.name = next_name_++;
  const Hold name = copy.name;
  Copy& added = part(id).copies.emplace(device_id, std::move(copy)).first->second;
  ask(id, device_id, added, Intent::kRead);
  return name;
}

bool DeviceCopies::holds(PartId id, DeviceId device, Hold hold) const {
  const Copy* copy = find(id, device);
  return hold != 0 && copy != nullptr && copy->name == hold;
}

bool DeviceCopies::ready(PartId id, DeviceId device) const {
  const Copy* copy = find(id, device);
  return copy != nullptr && copy->state == State::kReady;
}

void DeviceCopies::let_go(PartId id, DeviceId device) {
  Copy& copy = part(id).copies.at(device);
  if (--copy.claims > 0) return;
  if (copy.state == State::kFetching) {  // given up; what is being read becomes a host copy
    release_pin(copy);
    part(id).copies.erase(device);
    return;
  }
  rest(id, device);
}

std::byte* DeviceCopies::data(PartId id, DeviceId device) {
  return part(id).copies.at(device).buffer.data();
}

std::int64_t DeviceCopies::take_flow(PartId id, DeviceId device) {
  Copy& copy = part(id).copies.at(device);
  return std::exchange(copy.used, true) ? 0 : copy.name;
}

void DeviceCopies::written(PartId id, DeviceId device, const std::string& label) {
  Copies& copies = part(id).copies;
  for (auto entry = copies.begin(); entry != copies.end();) {
    Copy& copy = entry->second;
    if (entry->first == device) {
      ++entry;
      continue;
    }
    HYDRA_CHECK(copy.claims == 0, label + " was written while another device held it");
    if (copy.state == State::kReady) {
      entry = copies.erase(entry);
    } else {
      copy.outdated = true;
      ++entry;
    }
  }
  copies.at(device).dirty = true;
  homes_.overtaken(id);
}

bool DeviceCopies::quiet(PartId id) const {
  const Copies& copies = part(id).copies;
  return std::all_of(copies.begin(), copies.end(),
                     [](const auto& entry) { return entry.second.idle(); });
}

bool DeviceCopies::is_dirty(PartId id) const {
  const Copies& copies = part(id).copies;
  return std::any_of(copies.begin(), copies.end(),
                     [](const auto& entry) { return entry.second.dirty; });
}

bool DeviceCopies::there(PartId id, DeviceId device) const {
  const Copy* copy = find(id, device);
  return copy != nullptr && !copy->outdated;
}

void DeviceCopies::drop(PartId id) {
  Copies& copies = part(id).copies;
  for (auto& [device, copy] : copies) release_pin(copy);
  copies.clear();
}

void DeviceCopies::remove(PartId id) {
  drop(id);
  parts_.erase(id);
}

bool DeviceCopies::settle(PartId id) {
  Part& wanted = part(id);
  for (auto& [device, copy] : wanted.copies) {
    if (!copy.dirty) continue;
    if (copy.idle() && !copy.pin && !wanted.home_is_read()) ask(id, device, copy, Intent::kReceive);
    return false;
  }
  return true;
}

// Room.

// Picks the unclaimed copy that is needed last; clean ones before dirty ones at the same
// distance.
std::optional<PartId> DeviceCopies::cheapest_to_lose(DeviceId device, bool want_dirty) {
  std::optional<PartId> best;
  double farthest = -1;
  for (auto& [id, part] : parts_) {
    const Copy* copy = find(id, device);
    if (copy == nullptr || !copy->idle() || copy->pin || copy->dirty != want_dirty) continue;
    if (want_dirty && part.home_is_read()) continue;
    const double distance = next_use_(id);
    if (!best || distance > farthest || (distance == farthest && id < *best)) {
      farthest = distance;
      best = id;
    }
  }
  return best;
}

Bytes DeviceCopies::leaving_bytes(DeviceId device) const {
  Bytes total;
  for (const auto& [id, part] : parts_) {
    const auto found = part.copies.find(device);
    if (found == part.copies.end()) continue;
    const Copy& copy = found->second;
    const bool leaving = copy.state == State::kLeaving || copy.waits_to_leave();
    if (leaving && copy.claims == 0) total += copy.reservation.bytes();
  }
  return total;
}

// Grants bytes, making room from unclaimed copies. Dirty ones only start to leave.
std::optional<Reservation> DeviceCopies::grant(DeviceId device, Bytes bytes) {
  TierBudget& budget = ledgers_.at(index(device));
  if (auto granted = budget.try_reserve(bytes)) return granted;
  if (bytes > budget.capacity()) return std::nullopt;
  while (auto victim = cheapest_to_lose(device, false)) {
    part(*victim).copies.erase(device);
    ++counters_.evictions;
    if (auto granted = budget.try_reserve(bytes)) return granted;
  }
  while (budget.available() + leaving_bytes(device) < bytes) {
    const auto victim = cheapest_to_lose(device, true);
    if (!victim) break;
    Copy& copy = *find(*victim, device);
    ask(*victim, device, copy, Intent::kReceive);
    if (copy.idle() && !copy.pin) break;  // the host has no memory for it
  }
  return std::nullopt;
}

bool DeviceCopies::moving() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const auto& entry) {
    const Copies& copies = entry.second.copies;
    return std::any_of(copies.begin(), copies.end(), [](const auto& copy) {
      return copy.second.state == State::kLoading || copy.second.state == State::kLeaving;
    });
  });
}

bool DeviceCopies::clear(DeviceId device, std::span<const PartId> keep) {
  bool clear = true;
  for (auto& [id, part] : parts_) {
    Copy* copy = find(id, device);
    if (copy == nullptr || std::find(keep.begin(), keep.end(), id) != keep.end()) continue;
    if (copy->idle() && !copy->dirty) {
      part.copies.erase(device);
      continue;
    }
    clear = false;
    if (copy->idle() && !copy->pin && !part.home_is_read()) {
      ask(id, device, *copy, Intent::kReceive);
    }
  }
  return clear;
}

// What becomes of a copy that nothing holds or moves.
void DeviceCopies::rest(PartId id, DeviceId device) {
  Copy* copy = find(id, device);
  if (!evict_at_once_ || copy == nullptr || !copy->idle() || copy->pin) return;
  if (!copy->dirty) {
    part(id).copies.erase(device);
  } else if (!part(id).home_is_read()) {
    ask(id, device, *copy, Intent::kReceive);
  }
}

// Transfers.

void DeviceCopies::ask(PartId id, DeviceId device, Copy& copy, Intent intent) {
  copy.pin = homes_.pin({id}, intent);
  if (!progress(id, device)) asking_.emplace_back(id, device);
}

void DeviceCopies::release_pin(Copy& copy) {
  if (!copy.pin) return;
  homes_.unpin(*copy.pin);
  copy.pin.reset();
}

// Whatever ends a pin lets others be granted, so that those before it are looked at once more.
void DeviceCopies::progress() {
  for (bool changed = true; changed;) {
    changed = false;
    auto still_asking = std::exchange(asking_, {});
    for (const auto& [id, device] : still_asking) {
      if (!parts_.contains(id) || progress(id, device)) {
        changed = true;
      } else {
        asking_.emplace_back(id, device);
      }
    }
  }
}

// True when the copy asks for nothing any more.
bool DeviceCopies::progress(PartId id, DeviceId device) {
  Copy* copy = find(id, device);
  if (copy == nullptr || !copy->pin) return true;
  if (copy->state == State::kLoading || copy->state == State::kLeaving) return true;
  switch (homes_.state(*copy->pin)) {
    case PinState::kWaiting:
    case PinState::kGranted:
      return false;
    case PinState::kLost:
      lose_pin(id, device);
      return true;
    case PinState::kReady:
      break;
  }
  if (copy->state == State::kFetching) {
    start_load(id, device, *copy);
    return true;
  }
  if (part(id).home_is_read()) return false;
  start_write_back(id, device, *copy);
  return true;
}

// A copy without its bytes is useless: whoever holds it holds nothing. One that could not leave
// stays, dirty.
void DeviceCopies::lose_pin(PartId id, DeviceId device) {
  Copy& copy = *find(id, device);
  release_pin(copy);
  if (copy.state == State::kFetching) part(id).copies.erase(device);
}

void DeviceCopies::watch(const Event& event, PartId id, DeviceId device) {
  event.then([post = post_, event, id, device] {
    post(TransferDone{id, device, event.failure()});
  });
}

// A device that refuses what its ledger had granted is a failed load, not a failed store.
void DeviceCopies::start_load(PartId id, DeviceId device_id, Copy& copy) {
  Device& target = device(device_id);
  const Bytes size = part(id).size;
  copy.state = State::kLoading;
  ++counters_.loads;
  try {
    copy.buffer = DeviceBuffer(target, size);
  } catch (const Error&) {
    const Event failed = Event::pending();
    failed.fire(std::current_exception());
    watch(failed, id, device_id);
    return;
  }
  const CopyNote note{homes_.label(id), copy.name};
  watch(target.upload().copy(copy.buffer.data(), homes_.data(id), size, note), id, device_id);
}

void DeviceCopies::start_write_back(PartId id, DeviceId device_id, Copy& copy) {
  copy.state = State::kLeaving;
  ++counters_.write_backs;
  const CopyNote note{homes_.label(id), 0};
  watch(device(device_id).download().copy(homes_.data(id), copy.buffer.data(), part(id).size, note),
        id, device_id);
}

void DeviceCopies::finish(const TransferDone& done, const std::string& label) {
  Copy* copy = find(done.part, done.device);
  HYDRA_CHECK(copy != nullptr, label + ": a transfer ended that was not begun");
  if (copy->state == State::kLoading) {
    end_load(done, *copy);
  } else {
    end_write_back(done, *copy);
  }
}

void DeviceCopies::end_load(const TransferDone& done, Copy& copy) {
  copy.state = State::kReady;
  release_pin(copy);
  Copies& copies = part(done.part).copies;
  if (copy.outdated) {
    copies.erase(done.device);
    // A dirty copy elsewhere may have waited for this load to leave the home alone.
    for (auto& [device, other] : copies) {
      if (!other.dirty) continue;
      rest(done.part, device);
      break;
    }
  } else if (done.failure != nullptr) {
    copies.erase(done.device);  // whoever holds it holds nothing
  } else {
    rest(done.part, done.device);
  }
}

void DeviceCopies::end_write_back(const TransferDone& done, Copy& copy) {
  copy.state = State::kReady;
  if (done.failure != nullptr) {  // still dirty, still the only current copy
    release_pin(copy);
    return;
  }
  copy.dirty = false;
  homes_.received(done.part);
  release_pin(copy);
  if (copy.claims == 0) part(done.part).copies.erase(done.device);
}

}  // namespace hydra
