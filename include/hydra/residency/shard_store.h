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
#include "hydra/io/extent_store.h"
#include "hydra/memory/host_arena.h"
#include "hydra/memory/tier_budget.h"

namespace hydra {

/// The end of an upload or a write-back that the shard store had started; or, with no device, a
/// transfer between storage and host memory that failed.
struct TransferDone {
  PartId part;
  DeviceId device;
  std::exception_ptr failure;  ///< null when it went well
  bool retried = false;        ///< the store has tried it again by itself: its job has to end
};

/// What a part is when it is given to the store.
struct PartSpec {
  JobId job;
  std::string label;  ///< "job-1 shard 3 parameters", for messages
  HostBuffer home;    ///< its bytes in the host tier, current at the start
  /// Its home is an extent, and `home`, which was paid for by the storage tier's host memory, its
  /// first host copy. The extent is taken now and written when the copy has to leave, if ever.
  bool on_storage = false;
};

/// A right to host copies of parts, and to bytes of host memory.
using HostClaimId = Id<struct HostClaimTag>;

/// Keeps where every part is: its home in host memory or on storage, and its copies on the devices.
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
///   absent   -> fetching       the same, but its bytes have to be brought to the host first
///   fetching -> loading        they are there
///   fetching -> absent         they could not be read, or no claim wants it any more
///   loading  -> ready          its upload is done
///   loading  -> absent         its upload has failed, or is of an old version by now
///   ready    -> absent         dropped: clean and unclaimed, or its part was written elsewhere
///   ready    -> leaving        dirty, and its room or its bytes are wanted: write-back started
///   leaving  -> ready          written back and still wanted there; now clean
///   leaving  -> absent         written back
/// A write-back starts only while no upload reads the part's home and, of a part whose home is on
/// storage, once there is room for it in the host.
///
/// Storage. Host memory is a cache over the homes that are on storage. Uploads, write-backs and
/// host claims hold what they need of it; of the rest the copy goes first whose loss costs least
/// (reload and write-back, weighed by its next use). Clean host copies are dropped, dirty ones are
/// written to their extents first, and nothing is written while host memory suffices.
///
/// Why it cannot deadlock: room on devices comes before room in the host, and room in the host
/// before I/O. A load takes its room on the device and only then asks for the host copy; a copy
/// that has to be written back is on a device and asks for room in the host; a host claim takes
/// its parts from the devices (none may be claimed there) before it asks for host room. Whoever
/// asks for host room gets all of it at once, oldest first, and holds none before; whoever holds
/// some waits only for reads, writes and copies that are under way, or is a ready host claim, whose
/// owner must wait for nothing of the store before it closes it. So host room always comes back
/// and, with it, room on devices. A claim can be closed in any state, which gives back what it
/// holds; reads that it had begun end by themselves and leave a clean copy. A prefetch holds
/// nothing, starts only while nobody waits for host room, and takes only free room and that of
/// copies with a later next use. Needed for all this: every part, and every host claim, is no
/// larger than the storage tier's host memory less what others hold of it for good. As without
/// storage, the claims of two devices must not each hold a part that its device has written and
/// the other waits for.
///
/// Thread safety: confined to the coordinator. `post` is called on the devices' copy threads and
/// on the caller's; what it is given must reach `finish` on the coordinator's thread, as must what
/// the extent store's own `post` is given.
/// Lifetime: devices and the extent store are closed before the store is destroyed.
class ShardStore {
 public:
  using Post = std::function<void(TransferDone)>;
  /// Returns how far away a part's next use is (any unit; larger is later), for eviction.
  using NextUse = std::function<double(PartId)>;

  struct Options {
    /// Drops or writes back every copy as soon as no claim holds it, host copies of parts on
    /// storage too: makes latent bugs loud.
    bool evict_at_once = false;
  };
  /// What parts on storage need. All are borrowed; none: there is no storage tier.
  struct Storage {
    ExtentStore* extents = nullptr;  ///< all its requests are the store's
    /// Pays for host copies. Best a budget of its own: what others hold of it, evictions cannot
    /// bring back.
    TierBudget* host = nullptr;
    HostArena* arena = nullptr;
  };

  ShardStore(std::vector<Device*> devices, const Post& post, Options options);
  ShardStore(std::vector<Device*> devices, const Post& post, Options options, Storage storage);
  ~ShardStore();

  /// Sets what is asked when a device's room is wanted and, by default, host room too.
  void set_next_use(NextUse next_use);
  /// Sets what is asked when host room is wanted: when the host copy is next read or changed.
  void set_next_host_use(NextUse next_use);

  /// Errors: StorageError when the part is on storage and the drives are full.
  PartId add(PartSpec spec);
  /// Forgets a part, its copies and its home. It must be idle (see `idle`).
  void remove(PartId part);
  /// Forgets a part and its copies, and returns its home, which is in host memory for good. It must
  /// be idle and settled.
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
  /// The flows of a ready claim's copies that it is the first to use, for traces (CopyNote::flow).
  std::vector<std::int64_t> take_flows(ClaimId claim);
  /// Says that the claim's device has written the part: its copy is the only current one.
  void mark_written(ClaimId claim, PartId part);

  /// Bytes of `parts` that are neither on the device nor on their way there.
  Bytes missing(std::span<const PartId> parts, DeviceId device) const;

  // Workspaces of units.

  /// Grants device bytes to a unit, dropping unclaimed copies as needed. Empty when there is no
  /// room yet: write-backs that will make room have been started.
  std::optional<Reservation> reserve_workspace(DeviceId device, Bytes bytes);
  /// Drops or writes back every copy on a device but those of `keep`'s parts; true when no other is
  /// left. Without `keep`, all that no claim holds.
  bool clear_device(DeviceId device, std::optional<ClaimId> keep = std::nullopt);

  // Claims by the host: to read or change parts, wherever their homes are.

  /// Asks for host copies of parts, for the claim's owner alone: loads to devices wait until it is
  /// closed. The parts may be on devices, even dirty, but it waits while they are claimed there or
  /// under way, holding nothing. `room` is for bytes beside them (a new part's, say), of the
  /// storage tier's host memory. Errors: DoesNotFit when host memory can never hold all of it.
  HostClaimId open_host_claim(std::vector<PartId> parts, Bytes room = Bytes(0));
  /// Starts what transfers it can and returns kReady when all parts and the room are there.
  ClaimState advance(HostClaimId claim);
  /// The bytes of a part of a ready claim.
  std::byte* host_data(HostClaimId claim, PartId part);
  /// Says that the host writes a part of a ready claim: drops its copies on devices.
  void mark_host_written(HostClaimId claim, PartId part);
  /// Hands over the room of a ready claim.
  Reservation take_room(HostClaimId claim);
  /// Forgets a part of a ready claim, and its copies, and returns its bytes.
  HostBuffer take_home(HostClaimId claim, PartId part);
  /// Lets the parts go; what was written leaves host memory only when its room is wanted.
  void close_host_claim(HostClaimId claim);

  /// Reads parts on storage that will be wanted soon, the first ones first, as far as there is
  /// host room that nobody wants sooner. Holds nothing.
  void prefetch(std::span<const PartId> parts);

  // The host tier's side of parts whose home is in host memory for good.

  /// Starts the write-back that makes the home current, if one is needed; true when it is current
  /// (of a part on storage: when no device has newer bytes).
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
  /// Takes in the end of a request of the extent store. Returns a failure that hits the part's job:
  /// a read that a claim waits for (its claims ask again when they are advanced), or a write that
  /// has failed twice (the host copy stays, dirty, until the part is removed).
  std::optional<TransferDone> finish(const ExtentStore::Done& done);
  /// True while the end of a transfer, or a failure of one, is still to be heard of.
  bool transfers_under_way() const;
  /// Which job a part belongs to, and what it is called.
  JobId job_of(PartId part) const;
  const std::string& label(PartId part) const;

  /// The ledger of a device: what copies and workspaces have been granted.
  const TierBudget& ledger(DeviceId device) const;

  struct Counters {
    std::int64_t loads = 0;
    std::int64_t evictions = 0;  ///< clean copies dropped to make room
    std::int64_t write_backs = 0;
    std::int64_t storage_reads = 0;
    std::int64_t storage_writes = 0;
    Bytes storage_read_bytes;
    Bytes storage_written_bytes;
    std::int64_t host_evictions = 0;  ///< host copies dropped to make room
  };
  Counters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
