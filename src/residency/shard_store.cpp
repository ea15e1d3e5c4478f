#include "hydra/residency/shard_store.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "hydra/core/check.h"
#include "residency/device_copies.h"
#include "residency/home_store.h"

namespace hydra {
namespace {

using Intent = HomeStore::Intent;
using PinState = HomeStore::PinState;

struct Part {
  JobId job;
  std::string label;
  Bytes size;
  bool host_owned = false;   // by a host claim, or a write of the home
  int open_claims = 0;       // of devices
  int open_host_claims = 0;  // that own it, or wait to
};

struct Claim {
  DeviceId device;
  std::vector<PartId> parts;
  std::vector<DeviceCopies::Hold> holds;
};

struct HostClaim {
  std::vector<PartId> parts;
  Bytes room;
  std::optional<HomeStore::PinId> pin;  // once it owns its parts
};

}  // namespace

struct ShardStore::Impl {
  Impl(std::vector<Device*> devices, const Post& post, Options options, Storage storage)
      : homes(storage, post, options.evict_at_once),
        copies(std::move(devices), homes, post, options.evict_at_once) {}

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

  HostClaim& claim(HostClaimId id) {
    const auto found = host_claims.find(id);
    HYDRA_CHECK(found != host_claims.end(), "no such host claim: " + std::to_string(id.value()));
    return found->second;
  }

  /// A part of a claim that is ready.
  void check_ready(const HostClaim& claim, PartId id) {
    const bool named = std::find(claim.parts.begin(), claim.parts.end(), id) != claim.parts.end();
    HYDRA_CHECK(
        named && claim.pin && homes.state(*claim.pin) == PinState::kReady && !copies.is_dirty(id),
        part(id).label + " is not in the host yet");
  }

  // Nothing of it is claimed or under way on devices.
  bool free_for_host(PartId id) {
    const Part& wanted = part(id);
    return wanted.open_claims == 0 && !wanted.host_owned && copies.quiet(id);
  }

  // Brings one part of a claim nearer to the device; true when it is there and held.
  bool advance_part(Claim& claim, std::size_t i) {
    const PartId id = claim.parts[i];
    DeviceCopies::Hold& hold = claim.holds[i];
    if (!copies.holds(id, claim.device, hold)) {
      hold = part(id).host_owned ? 0 : copies.hold(id, claim.device);
    }
    return copies.holds(id, claim.device, hold) && copies.ready(id, claim.device);
  }

  // A host claim owns its parts before it asks for room, so that nothing that it waits for then
  // can wait for it.
  bool take_over(HostClaim& claim) {
    const bool all = std::all_of(claim.parts.begin(), claim.parts.end(),
                                 [&](PartId id) { return free_for_host(id); });
    if (!all) return false;
    for (const PartId id : claim.parts) part(id).host_owned = true;
    claim.pin = homes.pin(claim.parts, Intent::kWrite, claim.room);
    return true;
  }

  void give_back(HostClaim& claim) {
    if (!claim.pin) return;
    for (const PartId id : claim.parts) part(id).host_owned = false;
    homes.unpin(*claim.pin);
    claim.pin.reset();
  }

  void forget(PartId id) {
    copies.remove(id);
    parts.erase(id);
  }

  HomeStore homes;
  DeviceCopies copies;
  std::unordered_map<PartId, Part> parts;
  std::unordered_map<ClaimId, Claim> claims;
  std::unordered_map<HostClaimId, HostClaim> host_claims;
  std::int64_t next_part = 0;
  ClaimId next_claim = 0;
  std::int64_t next_host_claim = 0;
};

ShardStore::ShardStore(std::vector<Device*> devices, const Post& post, Options options)
    : ShardStore(std::move(devices), post, options, Storage()) {}

ShardStore::ShardStore(std::vector<Device*> devices, const Post& post, Options options,
                       Storage storage)
    : impl_(std::make_unique<Impl>(std::move(devices), post, options, storage)) {}

ShardStore::~ShardStore() = default;

void ShardStore::set_next_use(NextUse next_use) {
  impl_->homes.set_next_use(next_use);
  impl_->copies.set_next_use(std::move(next_use));
}

void ShardStore::set_next_host_use(NextUse next_use) {
  impl_->homes.set_next_use(std::move(next_use));
}

PartId ShardStore::add(PartSpec spec) {
  const PartId id(impl_->next_part++);
  const Bytes size = spec.home.size();
  impl_->homes.add(id, spec.label, std::move(spec.home), spec.on_storage);
  impl_->copies.add(id, size);
  impl_->parts.emplace(id, Part{spec.job, std::move(spec.label), size});
  return id;
}

bool ShardStore::idle(PartId id) const {
  const Part& part = impl_->part(id);
  if (part.open_claims > 0 || part.open_host_claims > 0 || part.host_owned) return false;
  return impl_->copies.quiet(id) && !impl_->homes.moving(id);
}

void ShardStore::remove(PartId id) {
  HYDRA_CHECK(idle(id), impl_->part(id).label + " is in use");
  impl_->forget(id);
  impl_->homes.remove(id);
  impl_->copies.progress();
}

HostBuffer ShardStore::take_home(PartId id) {
  HYDRA_CHECK(idle(id), impl_->part(id).label + " is in use");
  HYDRA_CHECK(!impl_->copies.is_dirty(id), impl_->part(id).label + " is not settled");
  HYDRA_CHECK(!impl_->homes.on_storage(id), impl_->part(id).label + " may be on storage");
  impl_->forget(id);
  return impl_->homes.take(id);
}

// Claims by devices.

ShardStore::ClaimId ShardStore::open_claim(DeviceId device, std::vector<PartId> parts) {
  Claim claim;
  claim.device = device;
  claim.holds.assign(parts.size(), 0);
  for (const PartId id : parts) ++impl_->part(id).open_claims;
  claim.parts = std::move(parts);
  const ClaimId id = impl_->next_claim++;
  impl_->claims.emplace(id, std::move(claim));
  return id;
}

ShardStore::ClaimState ShardStore::advance(ClaimId id) {
  impl_->homes.serve();
  Claim& claim = impl_->claim(id);
  bool ready = true;
  for (std::size_t i = 0; i < claim.parts.size(); ++i) {
    ready = impl_->advance_part(claim, i) && ready;
  }
  impl_->copies.progress();
  return ready ? ClaimState::kReady : ClaimState::kWaiting;
}

void ShardStore::close_claim(ClaimId id) {
  const Claim claim = std::move(impl_->claim(id));
  impl_->claims.erase(id);
  for (std::size_t i = 0; i < claim.parts.size(); ++i) {
    --impl_->part(claim.parts[i]).open_claims;
    if (impl_->copies.holds(claim.parts[i], claim.device, claim.holds[i])) {
      impl_->copies.let_go(claim.parts[i], claim.device);
    }
  }
  impl_->copies.progress();
}

std::byte* ShardStore::device_data(ClaimId id, PartId part) {
  return impl_->copies.data(part, impl_->claim(id).device);
}

std::vector<std::int64_t> ShardStore::take_flows(ClaimId id) {
  const Claim& claim = impl_->claim(id);
  std::vector<std::int64_t> flows;
  for (const PartId part : claim.parts) {
    const std::int64_t flow = impl_->copies.take_flow(part, claim.device);
    if (flow != 0) flows.push_back(flow);
  }
  return flows;
}

void ShardStore::mark_written(ClaimId id, PartId part) {
  impl_->copies.written(part, impl_->claim(id).device, impl_->part(part).label);
  impl_->copies.progress();
}

Bytes ShardStore::missing(std::span<const PartId> parts, DeviceId device) const {
  Bytes total;
  for (const PartId id : parts) {
    if (!impl_->copies.there(id, device)) total += impl_->part(id).size;
  }
  return total;
}

std::optional<Reservation> ShardStore::reserve_workspace(DeviceId device, Bytes bytes) {
  return impl_->copies.grant(device, bytes);
}

bool ShardStore::transfers_under_way() const {
  return impl_->copies.moving() || impl_->homes.moving();
}

bool ShardStore::clear_device(DeviceId device, std::optional<ClaimId> keep) {
  if (!keep) return impl_->copies.clear(device, {});
  return impl_->copies.clear(device, impl_->claim(*keep).parts);
}

// Claims by the host.

HostClaimId ShardStore::open_host_claim(std::vector<PartId> parts, Bytes room) {
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  Bytes most = room;
  for (const PartId id : parts) {
    if (impl_->homes.on_storage(id)) most += impl_->part(id).size;
  }
  if (most > impl_->homes.capacity()) {
    throw DoesNotFit((parts.empty() ? "a new part" : impl_->part(parts.front()).label) + " needs " +
                     to_string(most) + " of host memory at once, the storage tier has " +
                     to_string(impl_->homes.capacity()) + " of it: raise host_memory");
  }
  for (const PartId id : parts) ++impl_->part(id).open_host_claims;
  const HostClaimId id(impl_->next_host_claim++);
  impl_->host_claims.emplace(id, HostClaim{std::move(parts), room, std::nullopt});
  return id;
}

ShardStore::ClaimState ShardStore::advance(HostClaimId id) {
  impl_->homes.serve();
  HostClaim& claim = impl_->claim(id);
  if (claim.pin && impl_->homes.state(*claim.pin) == PinState::kLost) impl_->give_back(claim);
  if (!claim.pin && !impl_->take_over(claim)) return ClaimState::kWaiting;
  bool settled = impl_->homes.state(*claim.pin) != PinState::kWaiting;
  if (settled) {
    for (const PartId part : claim.parts) settled = impl_->copies.settle(part) && settled;
  }
  impl_->copies.progress();
  const bool ready = settled && impl_->homes.state(*claim.pin) == PinState::kReady;
  return ready ? ClaimState::kReady : ClaimState::kWaiting;
}

std::byte* ShardStore::host_data(HostClaimId id, PartId part) {
  impl_->check_ready(impl_->claim(id), part);
  return impl_->homes.data(part);
}

void ShardStore::mark_host_written(HostClaimId id, PartId part) {
  impl_->check_ready(impl_->claim(id), part);
  impl_->copies.drop(part);
  impl_->homes.written(part);
}

Reservation ShardStore::take_room(HostClaimId id) {
  HostClaim& claim = impl_->claim(id);
  HYDRA_CHECK(claim.pin, "room is taken before it is granted");
  claim.room = Bytes(0);
  return impl_->homes.take_room(*claim.pin);
}

HostBuffer ShardStore::take_home(HostClaimId id, PartId part) {
  HostClaim& claim = impl_->claim(id);
  impl_->check_ready(claim, part);
  const Part& leaving = impl_->part(part);
  HYDRA_CHECK(leaving.open_claims == 0 && leaving.open_host_claims == 1,
              leaving.label + " is in use");
  std::erase(claim.parts, part);
  impl_->forget(part);
  return impl_->homes.take(*claim.pin, part);
}

void ShardStore::close_host_claim(HostClaimId id) {
  HostClaim& claim = impl_->claim(id);
  impl_->give_back(claim);
  for (const PartId part : claim.parts) --impl_->part(part).open_host_claims;
  impl_->host_claims.erase(id);
  impl_->copies.progress();
}

void ShardStore::prefetch(std::span<const PartId> parts) { impl_->homes.prefetch(parts); }

// Homes in host memory for good.

bool ShardStore::settle(PartId id) { return impl_->copies.settle(id); }

std::byte* ShardStore::begin_host_write(PartId id) {
  Part& part = impl_->part(id);
  HYDRA_CHECK(idle(id), part.label + " is in use");
  HYDRA_CHECK(!impl_->copies.is_dirty(id), part.label + " is not settled");
  HYDRA_CHECK(!impl_->homes.on_storage(id), part.label + " may be on storage");
  impl_->copies.drop(id);
  part.host_owned = true;
  return impl_->homes.data(id);
}

void ShardStore::end_host_write(PartId id) { impl_->part(id).host_owned = false; }

const std::byte* ShardStore::host_data(PartId id) const { return impl_->homes.data(id); }

Bytes ShardStore::bytes(PartId id) const { return impl_->part(id).size; }

void ShardStore::finish(const TransferDone& done) {
  if (done.device.valid()) {
    impl_->copies.finish(done, impl_->part(done.part).label);
  } else {
    impl_->homes.heard(done.part);
  }
  impl_->copies.progress();
}

std::optional<TransferDone> ShardStore::finish(const ExtentStore::Done& done) {
  std::optional<TransferDone> failed = impl_->homes.finish(done);
  impl_->copies.progress();
  return failed;
}

JobId ShardStore::job_of(PartId id) const { return impl_->part(id).job; }

const std::string& ShardStore::label(PartId id) const { return impl_->part(id).label; }

const TierBudget& ShardStore::ledger(DeviceId device) const { return impl_->copies.ledger(device); }

ShardStore::Counters ShardStore::counters() const {
  Counters counters = impl_->homes.counters();
  const Counters& devices = impl_->copies.counters();
  counters.loads = devices.loads;
  counters.evictions = devices.evictions;
  counters.write_backs = devices.write_backs;
  return counters;
}

}  // namespace hydra
