#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hydra/device/device.h"
#include "hydra/memory/tier_budget.h"
#include "hydra/residency/shard_store.h"
#include "residency/home_store.h"

namespace hydra {

/// Keeps the copies of parts on the devices, as the first table in shard_store.h says, and moves
/// bytes between them and the homes.
///
/// Whoever waits for room in the host may hold room on a device (a load's, and that of a copy that
/// has to be written back); nobody who holds room in the host waits for room on a device.
///
/// Thread safety: confined to the coordinator.
class DeviceCopies {
 public:
  /// Names one copy's stay on a device; 0 is none.
  using Hold = std::int64_t;

  DeviceCopies(std::vector<Device*> devices, HomeStore& homes, ShardStore::Post post,
               bool evict_at_once);

  void set_next_use(ShardStore::NextUse next_use) { next_use_ = std::move(next_use); }

  void add(PartId part, Bytes size) { parts_.emplace(part, Part{size, {}}); }
  /// Forgets a part and its copies, which must be quiet.
  void remove(PartId part);

  /// Holds a part's copy, having it loaded if there is room; 0 when it cannot be held yet.
  Hold hold(PartId part, DeviceId device);
  bool holds(PartId part, DeviceId device, Hold hold) const;
  bool ready(PartId part, DeviceId device) const;
  void let_go(PartId part, DeviceId device);
  std::byte* data(PartId part, DeviceId device);
  /// The flow of a copy that nobody has used since it was loaded, for traces; else 0.
  std::int64_t take_flow(PartId part, DeviceId device);
  /// Makes a held copy the only current one. `label` is for the message when others are held.
  void written(PartId part, DeviceId device, const std::string& label);

  /// True while any transfer is under way.
  bool moving() const;
  /// True when no copy is held or under way.
  bool quiet(PartId part) const;
  bool is_dirty(PartId part) const;
  /// True when the part is there, or on its way and current.
  bool there(PartId part, DeviceId device) const;
  /// Drops all copies, which must be quiet and clean.
  void drop(PartId part);
  /// Starts the write-back that makes the home current, if one is needed; true when it is current.
  bool settle(PartId part);

  std::optional<Reservation> grant(DeviceId device, Bytes bytes);
  bool clear(DeviceId device, std::span<const PartId> keep);

  void finish(const TransferDone& done, const std::string& label);
  /// Starts the transfers that have waited for the host.
  void progress();

  const TierBudget& ledger(DeviceId device) const;
  const ShardStore::Counters& counters() const { return counters_; }

 private:
  enum class State {
    kFetching,  // room is granted here; the bytes are not in the host yet
    kLoading,
    kReady,
    kLeaving,
  };
  struct Copy {
    State state = State::kFetching;
    bool dirty = false;
    bool outdated = false;  // still loading, though the part has been written elsewhere meanwhile
    bool used = false;      // a unit has been given it since it was loaded
    int claims = 0;
    Hold name = 0;
    std::optional<HomeStore::PinId> pin;  // what a transfer reads or writes, or waits for
    DeviceBuffer buffer;
    Reservation reservation;

    bool idle() const { return state == State::kReady && claims == 0; }
    bool waits_to_leave() const { return state == State::kReady && pin.has_value(); }
  };
  using Copies = std::map<DeviceId, Copy>;
  struct Part {
    Bytes size;
    Copies copies;

    /// True while an upload reads the home, which a write-back must not overwrite then.
    bool home_is_read() const;
  };

  Part& part(PartId part);
  const Part& part(PartId part) const;
  Copy* find(PartId part, DeviceId device);
  const Copy* find(PartId part, DeviceId device) const;
  Device& device(DeviceId device) { return *devices_.at(index(device)); }
  static std::size_t index(DeviceId device) { return static_cast<std::size_t>(device.value()); }

  std::optional<PartId> cheapest_to_lose(DeviceId device, bool want_dirty);
  Bytes leaving_bytes(DeviceId device) const;
  void rest(PartId part, DeviceId device);
  void ask(PartId part, DeviceId device, Copy& copy, HomeStore::Intent intent);
  void release_pin(Copy& copy);
  bool progress(PartId part, DeviceId device);
  void lose_pin(PartId part, DeviceId device);
  void start_load(PartId part, DeviceId device, Copy& copy);
  void start_write_back(PartId part, DeviceId device, Copy& copy);
  void watch(const Event& event, PartId part, DeviceId device);
  void end_load(const TransferDone& done, Copy& copy);
  void end_write_back(const TransferDone& done, Copy& copy);

  const std::vector<Device*> devices_;
  std::vector<TierBudget> ledgers_;
  HomeStore& homes_;
  const ShardStore::Post post_;
  const bool evict_at_once_;
  ShardStore::NextUse next_use_ = [](PartId) { return 0.0; };
  std::unordered_map<PartId, Part> parts_;
  std::vector<std::pair<PartId, DeviceId>> asking_;  ///< copies whose pin is not used yet
  Hold next_name_ = 1;
  ShardStore::Counters counters_;
};

}  // namespace hydra
