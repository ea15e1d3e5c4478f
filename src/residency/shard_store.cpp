#include "hydra/residency/shard_store.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "hydra/core/check.h"

namespace hydra {
namespace {

enum class CopyState { kLoading, kReady, kLeaving };

struct Copy {
  CopyState state = CopyState::kLoading;
  bool dirty = false;
  bool outdated = false;  // still loading, though the part has been written elsewhere meanwhile
  int claims = 0;
  DeviceBuffer buffer;
  Reservation reservation;
};

struct Part {
  JobId job;
  std::string label;
  HostBuffer home;
  bool host_writing = false;
  int open_claims = 0;
  std::map<DeviceId, Copy> copies;

  /// True while an upload reads the home, which a write-back must not overwrite then.
  bool home_is_read() const {
    return std::any_of(copies.begin(), copies.end(),
                       [](const auto& entry) { return entry.second.state == CopyState::kLoading; });
  }

  std::optional<DeviceId> dirty_device() const {
    for (const auto& [device, copy] : copies) {
      if (copy.dirty) return device;
    }
    return std::nullopt;
  }
};

struct Claim {
  DeviceId device;
  std::vector<PartId> parts;
  std::vector<bool> held;
};

}  // namespace

struct ShardStore::Impl {
  std::vector<Device*> devices;
  std::vector<TierBudget> ledgers;
  Post post;
  Options options;
  NextUse next_use = [](PartId) { return 0.0; };
  std::unordered_map<PartId, Part> parts;
  std::unordered_map<ClaimId, Claim> claims;
  std::int64_t next_part = 0;
  ClaimId next_claim = 0;
  Counters counters;

  Device& device(DeviceId id) { return *devices.at(static_cast<std::size_t>(id.value())); }
  TierBudget& ledger(DeviceId id) { return ledgers.at(static_cast<std::size_t>(id.value())); }

  Part& part(PartId id) {
    const auto found = parts.find(id);
    HYDRA_CHECK(found != parts.end(), "no such part: " + std::to_string(id.value()));
    return found->second;
  }

  Claim& claim(ClaimId id) {
    const auto found = claims.find(id);
    HYDRA_CHECK(found != claims.end(), "no such claim: " + std::to_string(id));
    return found->second;
  }

  void watch(const Event& event, PartId id, DeviceId device_id) {
    event.then([post = post, event, id, device_id] {
      post(TransferDone{id, device_id, event.failure()});
    });
  }

  void start_write_back(PartId id, Part& part, DeviceId device_id, Copy& copy) {
    copy.state = CopyState::kLeaving;
    ++counters.write_backs;
    watch(device(device_id).download().copy(part.home.data(), copy.buffer.data(), part.home.size()),
          id, device_id);
  }

  // Picks the unclaimed copy that is needed last; clean ones before dirty ones at the same
  // distance.
  std::optional<PartId> cheapest_to_lose(DeviceId device_id, bool want_dirty) {
    std::optional<PartId> best;
    double farthest = -1;
    for (auto& [id, part] : parts) {
      const auto found = part.copies.find(device_id);
      if (found == part.copies.end()) continue;
      const Copy& copy = found->second;
      if (copy.state != CopyState::kReady || copy.claims > 0 || copy.dirty != want_dirty) continue;
      if (want_dirty && part.home_is_read()) continue;
      const double distance = next_use(id);
      if (!best || distance > farthest || (distance == farthest && id < *best)) {
        farthest = distance;
        best = id;
      }
    }
    return best;
  }

  Bytes leaving_bytes(DeviceId device_id) {
    Bytes total;
    for (auto& [id, part] : parts) {
      const auto found = part.copies.find(device_id);
      if (found != part.copies.end() && found->second.state == CopyState::kLeaving &&
          found->second.claims == 0) {
        total += found->second.reservation.bytes();
      }
    }
    return total;
  }

  // Grants bytes, making room from unclaimed copies. Dirty ones only start to leave.
  std::optional<Reservation> grant(DeviceId device_id, Bytes bytes) {
    TierBudget& budget = ledger(device_id);
    if (auto granted = budget.try_reserve(bytes)) return granted;
    if (bytes > budget.capacity()) return std::nullopt;
    while (auto victim = cheapest_to_lose(device_id, false)) {
      part(*victim).copies.erase(device_id);
      ++counters.evictions;
      if (auto granted = budget.try_reserve(bytes)) return granted;
    }
    while (budget.available() + leaving_bytes(device_id) < bytes) {
      const auto victim = cheapest_to_lose(device_id, true);
      if (!victim) break;
      Part& losing = part(*victim);
      start_write_back(*victim, losing, device_id, losing.copies.at(device_id));
    }
    return std::nullopt;
  }

  void let_go(PartId id, Part& part, DeviceId device_id) {
    const auto found = part.copies.find(device_id);
    if (found == part.copies.end()) return;
    Copy& copy = found->second;
    if (!options.evict_at_once || copy.claims > 0 || copy.state != CopyState::kReady) return;
    if (!copy.dirty) {
      part.copies.erase(found);
    } else if (!part.home_is_read()) {
      start_write_back(id, part, device_id, copy);
    }
  }

  // A device that refuses what its ledger had granted is a failed load, not a failed store.
  static Event start_load(Device& target, Part& part, Copy& copy) {
    try {
      copy.buffer = DeviceBuffer(target, part.home.size());
    } catch (const Error&) {
      const Event failed = Event::pending();
      failed.fire(std::current_exception());
      return failed;
    }
    return target.upload().copy(copy.buffer.data(), part.home.data(), part.home.size());
  }

  // Brings one part of a claim nearer to the device; true when it is there and held.
  bool advance_part(Claim& claim, std::size_t index) {
    if (claim.held[index]) {
      return part(claim.parts[index]).copies.at(claim.device).state == CopyState::kReady;
    }
    const PartId id = claim.parts[index];
    Part& wanted = part(id);
    const auto found = wanted.copies.find(claim.device);
    if (found != wanted.copies.end()) {
      if (found->second.outdated) return false;  // it goes when it has landed
      ++found->second.claims;
      claim.held[index] = true;
      return found->second.state == CopyState::kReady;
    }
    if (wanted.host_writing || !settle_home(id, wanted)) return false;
    Device& target = device(claim.device);
    auto reservation = grant(claim.device, target.allocation_size(wanted.home.size()));
    if (!reservation) return false;
    Copy copy;
    copy.reservation = std::move(*reservation);
    copy.claims = 1;
    claim.held[index] = true;
    ++counters.loads;
    const Event event = start_load(target, wanted, copy);
    wanted.copies.emplace(claim.device, std::move(copy));
    watch(event, id, claim.device);
    return false;
  }

  bool settle_home(PartId id, Part& part) {
    for (auto& [device_id, copy] : part.copies) {
      if (!copy.dirty) continue;
      if (copy.state == CopyState::kReady && copy.claims == 0 && !part.home_is_read()) {
        start_write_back(id, part, device_id, copy);
      }
      return false;
    }
    return true;
  }
};

ShardStore::ShardStore(std::vector<Device*> devices, Post post, Options options)
    : impl_(std::make_unique<Impl>()) {
  impl_->devices = std::move(devices);
  impl_->post = std::move(post);
  impl_->options = options;
  for (const Device* device : impl_->devices) {
    impl_->ledgers.emplace_back(device->name(), device->budget());
  }
}

ShardStore::~ShardStore() = default;

void ShardStore::set_next_use(NextUse next_use) { impl_->next_use = std::move(next_use); }

PartId ShardStore::add(PartSpec spec) {
  const PartId id(impl_->next_part++);
  Part part;
  part.job = spec.job;
  part.label = std::move(spec.label);
  part.home = std::move(spec.home);
  impl_->parts.emplace(id, std::move(part));
  return id;
}

bool ShardStore::idle(PartId id) const {
  const Part& part = impl_->part(id);
  if (part.open_claims > 0 || part.host_writing) return false;
  return std::all_of(part.copies.begin(), part.copies.end(), [](const auto& entry) {
    return entry.second.claims == 0 && entry.second.state == CopyState::kReady;
  });
}

void ShardStore::remove(PartId id) {
  HYDRA_CHECK(idle(id), impl_->part(id).label + " is in use");
  impl_->parts.erase(id);
}

HostBuffer ShardStore::take_home(PartId id) {
  HYDRA_CHECK(idle(id), impl_->part(id).label + " is in use");
  Part& part = impl_->part(id);
  HYDRA_CHECK(!part.dirty_device(), part.label + " is not settled");
  HostBuffer home = std::move(part.home);
  impl_->parts.erase(id);
  return home;
}

ShardStore::ClaimId ShardStore::open_claim(DeviceId device, std::vector<PartId> parts) {
  Claim claim;
  claim.device = device;
  claim.held.assign(parts.size(), false);
  for (const PartId id : parts) ++impl_->part(id).open_claims;
  claim.parts = std::move(parts);
  const ClaimId id = impl_->next_claim++;
  impl_->claims.emplace(id, std::move(claim));
  return id;
}

ShardStore::ClaimState ShardStore::advance(ClaimId id) {
  Claim& claim = impl_->claim(id);
  bool ready = true;
  for (std::size_t i = 0; i < claim.parts.size(); ++i) {
    ready = impl_->advance_part(claim, i) && ready;
  }
  return ready ? ClaimState::kReady : ClaimState::kWaiting;
}

void ShardStore::close_claim(ClaimId id) {
  Claim claim = std::move(impl_->claim(id));
  impl_->claims.erase(id);
  for (std::size_t i = 0; i < claim.parts.size(); ++i) {
    Part& part = impl_->part(claim.parts[i]);
    --part.open_claims;
    if (!claim.held[i]) continue;
    const auto found = part.copies.find(claim.device);
    HYDRA_CHECK(found != part.copies.end(), part.label + " was lost while it was held");
    --found->second.claims;
    impl_->let_go(claim.parts[i], part, claim.device);
  }
}

std::byte* ShardStore::device_data(ClaimId id, PartId part_id) {
  const Claim& claim = impl_->claim(id);
  return impl_->part(part_id).copies.at(claim.device).buffer.data();
}

void ShardStore::mark_written(ClaimId id, PartId part_id) {
  const Claim& claim = impl_->claim(id);
  Part& part = impl_->part(part_id);
  for (auto entry = part.copies.begin(); entry != part.copies.end();) {
    Copy& copy = entry->second;
    if (entry->first == claim.device) {
      ++entry;
      continue;
    }
    HYDRA_CHECK(copy.claims == 0, part.label + " was written while another device held it");
    if (copy.state == CopyState::kReady) {
      entry = part.copies.erase(entry);
    } else {
      copy.outdated = true;
      ++entry;
    }
  }
  part.copies.at(claim.device).dirty = true;
}

Bytes ShardStore::missing(std::span<const PartId> parts, DeviceId device) const {
  Bytes total;
  for (const PartId id : parts) {
    const Part& part = impl_->part(id);
    const auto found = part.copies.find(device);
    if (found == part.copies.end() || found->second.outdated) total += part.home.size();
  }
  return total;
}

std::optional<Reservation> ShardStore::reserve_workspace(DeviceId device, Bytes bytes) {
  return impl_->grant(device, bytes);
}

bool ShardStore::clear_device(DeviceId device) {
  bool clear = true;
  for (auto& [id, part] : impl_->parts) {
    const auto found = part.copies.find(device);
    if (found == part.copies.end()) continue;
    Copy& copy = found->second;
    if (copy.state == CopyState::kReady && copy.claims == 0 && !copy.dirty) {
      part.copies.erase(found);
      continue;
    }
    clear = false;
    if (copy.state == CopyState::kReady && copy.claims == 0 && !part.home_is_read()) {
      impl_->start_write_back(id, part, device, copy);
    }
  }
  return clear;
}

bool ShardStore::settle(PartId id) { return impl_->settle_home(id, impl_->part(id)); }

std::byte* ShardStore::begin_host_write(PartId id) {
  HYDRA_CHECK(idle(id), impl_->part(id).label + " is in use");
  Part& part = impl_->part(id);
  HYDRA_CHECK(!part.dirty_device(), part.label + " is not settled");
  part.copies.clear();
  part.host_writing = true;
  return part.home.data();
}

void ShardStore::end_host_write(PartId id) { impl_->part(id).host_writing = false; }

const std::byte* ShardStore::host_data(PartId id) const { return impl_->part(id).home.data(); }

Bytes ShardStore::bytes(PartId id) const { return impl_->part(id).home.size(); }

void ShardStore::finish(const TransferDone& done) {
  Part& part = impl_->part(done.part);
  const auto found = part.copies.find(done.device);
  HYDRA_CHECK(found != part.copies.end(), part.label + ": a transfer ended that was not begun");
  Copy& copy = found->second;
  if (copy.state == CopyState::kLoading) {
    copy.state = CopyState::kReady;
    if (copy.outdated) {
      part.copies.erase(found);
      // A dirty copy elsewhere may have waited for this load to leave the home alone.
      if (const auto dirty = part.dirty_device()) impl_->let_go(done.part, part, *dirty);
      return;
    }
    if (done.failure == nullptr) {
      impl_->let_go(done.part, part, done.device);
      return;
    }
    // The copy is useless: whoever holds it holds nothing.
    for (auto& [id, claim] : impl_->claims) {
      if (claim.device != done.device) continue;
      for (std::size_t i = 0; i < claim.parts.size(); ++i) {
        if (claim.parts[i] == done.part) claim.held[i] = false;
      }
    }
    part.copies.erase(found);
    return;
  }
  copy.state = CopyState::kReady;
  if (done.failure != nullptr) return;  // still dirty, still the only current copy
  copy.dirty = false;
  if (copy.claims == 0) part.copies.erase(found);
}

JobId ShardStore::job_of(PartId id) const { return impl_->part(id).job; }

const std::string& ShardStore::label(PartId id) const { return impl_->part(id).label; }

const TierBudget& ShardStore::ledger(DeviceId device) const { return impl_->ledger(device); }

ShardStore::Counters ShardStore::counters() const { return impl_->counters; }

}  // namespace hydra
