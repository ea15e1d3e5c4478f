#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/ids.h"
#include "hydra/io/extent_store.h"
#include "hydra/memory/host_arena.h"
#include "hydra/memory/tier_budget.h"
#include "hydra/residency/shard_store.h"

namespace hydra {

/// Where the bytes of a storage-homed part are, as the host sees it.
enum class HostState {
  kAbsent,     ///< not in host memory
  kReading,    ///< its extent is being read
  kClean,      ///< as on its extent
  kDirty,      ///< newer than its extent
  kWriting,    ///< being written to its extent; may be read meanwhile, not changed
  kReceiving,  ///< room for the bytes that a device has
};

/// Keeps the homes of parts: in host memory for good, or on storage with host memory as a cache
/// over it. Knows nothing of devices but that one may have newer bytes.
///
/// Host copies are held by pins. What no pin holds is a cache: when room is wanted, the copy whose
/// loss costs least (its reload, and its write-back if it is dirty, weighed by how soon it is used
/// again) goes first. Clean copies are dropped, dirty ones written first. Nothing is written before
/// room is wanted.
///
/// A host copy's life (of a storage-homed part; a host-homed one is kClean for good):
///   absent    -> reading            a granted pin, or a prefetch, wants its bytes
///   absent    -> receiving          a granted pin wants it, and a device has its newest bytes
///   reading   -> clean, absent      the read is done; has failed
///   clean     -> dirty              the host has written it
///   clean     -> absent             dropped: its room is wanted
///   dirty     -> writing            its room is wanted
///   writing   -> clean, dirty       written; not, twice: then it stays until its part is removed
///   receiving -> dirty, absent      the device's bytes are there; are not, and no pin is left
///   reading, clean, dirty, writing -> receiving, absent
///                                   a device has written the part (once no I/O is under way):
///                                   pinned, it takes the device's bytes next; otherwise it goes
///
/// Pins are granted whole or not at all, in the order in which they were asked for, by the store
/// itself whenever something changes: a waiting pin holds nothing, and a granted one waits for
/// nothing but its own reads and writes (and the device's bytes, for `kReceiving`). Only pins that
/// need no new room may overtake. Room that is free, or becomes so, is for the oldest waiting pin
/// alone, so that every pin is granted if pins end and each is smaller than the budget. A prefetch
/// takes only what no waiting pin could want and holds nothing once it is done.
///
/// Thread safety: confined to the coordinator.
class HomeStore {
 public:
  using PinId = Id<struct HostPinTag>;
  enum class Intent {
    kRead,     ///< the bytes are read
    kWrite,    ///< they may be changed: no other pin of the part does so, nor reads them
    kReceive,  ///< a device's bytes will be put there
  };
  enum class PinState {
    kWaiting,  ///< for room; holds nothing
    kGranted,  ///< all room is there; bytes are on their way
    kReady,
    kLost,  ///< a read, or the memory, has failed; holds nothing: to be unpinned
  };

  HomeStore(ShardStore::Storage storage, ShardStore::Post post, bool evict_at_once);

  void set_next_use(ShardStore::NextUse next_use) { next_use_ = std::move(next_use); }

  /// Takes a part in, with its bytes. Errors: StorageError when `on_storage` and the drives are
  /// full.
  void add(PartId part, const std::string& label, HostBuffer bytes, bool on_storage);
  const std::string& label(PartId part) const { return home(part).label; }
  /// Forgets a part; no pin may hold it and no I/O of it be under way.
  void remove(PartId part);
  /// The same, and returns its bytes. Only of a host-homed part, or of a pin that is ready.
  HostBuffer take(PartId part);
  HostBuffer take(PinId pin, PartId part);

  /// Asks for host copies of parts, each named once, and for `room` bytes beside them.
  PinId pin(std::vector<PartId> parts, Intent intent, Bytes room = Bytes(0));
  PinState state(PinId pin) const;
  /// Hands out the room that a granted pin was asked with.
  Reservation take_room(PinId pin);
  void unpin(PinId pin);
  /// Grants what can be granted; to be called when room may have come back from outside.
  void serve();

  /// Reads parts that will be wanted, the first ones first, as far as there is room that nobody
  /// wants sooner; has copies that are wanted later written, so that there will be more.
  void prefetch(std::span<const PartId> parts);

  std::byte* data(PartId part) { return home(part).buffer.data(); }
  /// Says that the host has written a part under a kWrite pin.
  void written(PartId part);
  /// Says that a device has written a part: what the host and the extent have is old.
  void overtaken(PartId part);
  /// Says that the device's bytes are in the host copy, under a kReceive pin.
  void received(PartId part);

  /// Takes in the end of a request. Returns a failure that somebody has to know of.
  std::optional<TransferDone> finish(const ExtentStore::Done& done);
  /// Takes in that a failure that was posted, of the memory for a part, has been heard.
  void heard(PartId part) { --home(part).unheard; }
  /// True while any request is under way, or a failure on its way to its job.
  bool moving() const {
    return std::any_of(homes_.begin(), homes_.end(),
                       [](const auto& entry) { return entry.second.moving(); });
  }
  /// True while a request of the part is under way, or a failure on its way to its job.
  bool moving(PartId part) const { return home(part).moving(); }

  HostState host_state(PartId part) const { return home(part).state; }
  bool on_storage(PartId part) const { return home(part).extent.has_value(); }
  /// The most that one pin can ask for.
  Bytes capacity() const;
  const ShardStore::Counters& counters() const { return counters_; }

 private:
  struct Home {
    std::string label;
    Bytes size;
    HostBuffer buffer;
    std::optional<ExtentStore::ExtentId> extent;
    std::optional<ExtentStore::RequestId> request;
    HostState state = HostState::kClean;
    bool newer_on_device = false;
    int pins = 0;    ///< granted
    int wanted = 0;  ///< pins that wait
    int failed_writes = 0;
    int unheard = 0;  ///< failures that were posted

    bool moving() const { return request.has_value() || unheard > 0; }
  };
  struct Pin {
    std::vector<PartId> parts;
    Intent intent = Intent::kRead;
    Bytes room;
    Reservation reservation;  ///< of the room
    PinState state = PinState::kWaiting;
  };
  struct Victim {
    PartId part;
    double cost = 0;
  };
  // Priorities of requests: somebody waits for it, or will.
  static constexpr std::int64_t kDemand = 0;
  static constexpr std::int64_t kAhead = 1;
  static constexpr int kMostWrites = 2;

  Home& home(PartId part);
  const Home& home(PartId part) const;
  static bool contains(std::span<const PartId> parts, PartId part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  }

  // Pins.
  Pin& pin(PinId pin);
  const Pin& pin(PinId pin) const;
  static bool ready(const Home& home, Intent intent);
  Bytes room_needed(const Pin& pin) const;
  bool grant(Pin& pin);
  void hold(Pin& pin, std::vector<HostBuffer> buffers);
  void hurry(const Home& home, Intent intent);
  void let_go(Pin& pin);
  bool lose_pins_of(PartId part);

  // Room (home_store_room.cpp).
  bool make_room(Bytes needed, std::span<const PartId> kept);
  bool make_room_beyond(Bytes needed, double distance);
  Bytes coming_room(std::span<const PartId> kept) const;
  std::vector<Victim> victims(std::span<const PartId> kept, double beyond) const;
  double distance(PartId part, const Home& home) const;
  bool start_ahead(PartId part, Home& home);
  void evict(PartId part, std::int64_t priority);
  void rest(PartId part, Home& home);
  void make_way(Home& home);
  void drop(Home& home);

  // Requests.
  void start_read(PartId part, Home& home, std::int64_t priority);
  void start_write(PartId part, Home& home, std::int64_t priority);
  std::optional<TransferDone> end_read(PartId part, Home& home, std::exception_ptr failure);
  std::optional<TransferDone> end_write(PartId part, Home& home, std::exception_ptr failure);

  const ShardStore::Storage storage_;
  const ShardStore::Post post_;
  const bool evict_at_once_;
  ShardStore::NextUse next_use_ = [](PartId) { return 0.0; };
  std::unordered_map<PartId, Home> homes_;
  std::map<PinId, Pin> pins_;
  std::set<PinId> waiting_;  ///< in the order in which they were asked for
  std::unordered_map<ExtentStore::RequestId, PartId> requests_;
  std::int64_t next_pin_ = 0;
  ShardStore::Counters counters_;
};

}  // namespace hydra
