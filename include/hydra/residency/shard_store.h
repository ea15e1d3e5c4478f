#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/ids.h"
#include "hydra/device/device.h"
#include "hydra/memory/host_arena.h"
#include "hydra/memory/tier_budget.h"

namespace hydra {

/// The end of an upload or a write-back that the shard store had started.
struct TransferDone {
  PartId part;
  DeviceId device;
  std::exception_ptr failure;  ///< null when it went well
};

/// What a part is when it is given to the store.
struct PartSpec {
  JobId job;
  std::string label;  ///< "job-1 shard 3 parameters", for messages
  HostBuffer home;    ///< its bytes in the host tier, current at the start
};

/// Keeps where every part is: its home in the host tier and its copies on the devices.
///
/// A buffer manager: a copy is clean or dirty and belongs to a version of the part; writing raises
/// the version and invalidates the other copies. A claim is a scoped right to a set of parts on one
/// device: its parts are brought there as room allows and stay until it is closed. Copies that no
/// claim holds are a cache: the one whose loss costs least goes first when room is needed; dirty
/// ones are written back before they go, clean ones are dropped.
///
/// Device bytes are granted from one ledger per device, which the workspaces of units share, so
/// that what is granted never exceeds the device's budget.
///
/// A copy's life (per part and device):
///   absent   -> loading        a claim wants it and there is room
///   loading  -> ready, absent  its upload is done; or has failed, or its part was written
///   elsewhere
///                              meanwhile (the upload is then of an old version)
///   ready    -> absent         dropped: clean and unclaimed, or its part was written elsewhere
///   ready    -> leaving        dirty, and its room or its bytes are wanted: write-back started
///   leaving  -> ready          written back and still wanted there; now clean
///   leaving  -> absent         written back
/// A write-back starts only while no upload reads the part's home.
///
/// Thread safety: confined to the coordinator. `post` is called on the devices' copy threads; what
/// it is given must reach `finish` on the coordinator's thread.
class ShardStore {
 public:
  using Post = std::function<void(TransferDone)>;
  /// Returns how far away a part's next use is (any unit; larger is later), for eviction.
  using NextUse = std::function<double(PartId)>;

  struct Options {
    /// Drops or writes back every copy as soon as no claim holds it: makes latent bugs loud.
    bool evict_at_once = false;
  };

  ShardStore(std::vector<Device*> devices, Post post, Options options);
  ~ShardStore();

  void set_next_use(NextUse next_use);

  PartId add(PartSpec spec);
  /// Forgets a part, its copies and its home. It must be idle (see `idle`).
  void remove(PartId part);
  /// Forgets a part and its copies, and returns its home. It must be idle and settled.
  HostBuffer take_home(PartId part);
  /// True when no claim holds the part and no transfer of it is under way.
  bool idle(PartId part) const;

  // Claims.

  enum class ClaimState { kWaiting, kReady };

  /// A right to parts on one device. Move-only by convention: lives in the store, named by number.
  using ClaimId = std::int64_t;

  ClaimId open_claim(DeviceId device, std::vector<PartId> parts);
  /// Starts what transfers it can and returns kReady when every part is there and held.
  ClaimState advance(ClaimId claim);
  /// Lets the parts go. Transfers under way end by themselves.
  void close_claim(ClaimId claim);
  /// The device memory of a part of a ready claim.
  std::byte* device_data(ClaimId claim, PartId part);
  /// Says that the claim's device has written the part: its copy is the only current one.
  void mark_written(ClaimId claim, PartId part);

  /// Bytes of `parts` that are neither on the device nor on their way there.
  Bytes missing(std::span<const PartId> parts, DeviceId device) const;

  // Workspaces of units.

  /// Grants device bytes to a unit, dropping unclaimed copies as needed. Empty when there is no
  /// room yet: write-backs that will make room have been started.
  std::optional<Reservation> reserve_workspace(DeviceId device, Bytes bytes);
  /// Drops or writes back every unclaimed copy on a device; true when none is left.
  bool clear_device(DeviceId device);

  // The host tier's side.

  /// Starts the write-back that makes the home current, if one is needed; true when it is current.
  bool settle(PartId part);
  /// Starts a write of the home by the host: the part must be idle and settled; drops all copies.
  std::byte* begin_host_write(PartId part);
  /// Ends it: loads may start again.
  void end_host_write(PartId part);
  /// The home's bytes; only to be read while the part is settled and not being written.
  const std::byte* host_data(PartId part) const;
  Bytes bytes(PartId part) const;

  /// Takes in the end of a transfer.
  void finish(const TransferDone& done);
  /// Which job a part belongs to, and what it is called.
  JobId job_of(PartId part) const;
  const std::string& label(PartId part) const;

  /// The ledger of a device: what copies and workspaces have been granted.
  const TierBudget& ledger(DeviceId device) const;

  struct Counters {
    std::int64_t loads = 0;
    std::int64_t evictions = 0;  ///< clean copies dropped to make room
    std::int64_t write_backs = 0;
  };
  Counters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
