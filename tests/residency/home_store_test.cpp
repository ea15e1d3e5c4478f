// One test per edge of a host copy's life, as the table in home_store.h lists them, and what pins
// and prefetches may and may not do.

#include "residency/home_store.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hydra/core/error.h"
#include "storage_tier.h"

namespace hydra {
namespace {

using Intent = HomeStore::Intent;
using PinState = HomeStore::PinState;
using PinId = HomeStore::PinId;

class HomeStoreTest : public ::testing::Test {
 protected:
  static constexpr Bytes kPart{64 << 10};

  // Room for four parts in the host and for eight on the drive.
  explicit HomeStoreTest(bool evict_at_once = false)
      : tier_(kPart * 4, kPart * 8, dones_),
        store_(
            tier_.storage(), [this](TransferDone done) { posted_.push_back(std::move(done)); },
            evict_at_once) {
    store_.set_next_use([this](PartId part) {
      const auto found = uses_.find(part);
      return found == uses_.end() ? 1.0 : found->second;
    });
  }
  ~HomeStoreTest() override { tier_.extents().close(); }

  PartId add(unsigned char content, Bytes size = kPart) {
    const PartId part(next_part_++);
    HostBuffer buffer = tier_.buffer(size);
    std::memset(buffer.data(), content, size.size());
    store_.add(part, "part " + std::to_string(part.value()), std::move(buffer), true);
    return part;
  }
  /// Adds a part that is on its extent alone.
  PartId add_absent(unsigned char content, Bytes size = kPart) {
    const PartId part = add(content, size);
    evict(part);
    return part;
  }
  void evict(PartId part) {
    const auto uses = std::exchange(uses_, {{part, 1e9}});
    const Bytes all = tier_.host().capacity() - tier_.host().reserved() + Bytes(1);
    const PinId room = store_.pin({}, Intent::kRead, all);
    while (store_.host_state(part) != HostState::kAbsent) finish();
    store_.unpin(room);
    uses_ = uses;
  }
  std::optional<TransferDone> finish() { return store_.finish(dones_.pop().value()); }
  void finish_until_ready(PinId pin) {
    while (store_.state(pin) != PinState::kReady) {
      const auto failed = finish();
      ASSERT_FALSE(failed.has_value());
    }
  }
  PinId pin_ready(std::vector<PartId> parts, Intent intent = Intent::kRead) {
    const PinId pin = store_.pin(std::move(parts), intent);
    finish_until_ready(pin);
    return pin;
  }
  void fill(PartId part, unsigned char content) {
    std::memset(store_.data(part), content, kPart.size());
  }
  void write(PartId part, unsigned char content) {
    const PinId pin = pin_ready({part}, Intent::kWrite);
    fill(part, content);
    store_.written(part);
    store_.unpin(pin);
  }
  bool holds(PartId part, unsigned char content) {
    const std::byte* data = store_.data(part);
    return std::all_of(data, data + kPart.size(),
                       [&](std::byte byte) { return byte == std::byte{content}; });
  }
  HostState state(PartId part) { return store_.host_state(part); }
  Bytes reserved() { return tier_.host().reserved(); }
  const ShardStore::Counters& counters() { return store_.counters(); }

  Inbox<ExtentStore::Done> dones_{1 << 10};
  StorageTier<ExtentStore::Done> tier_;
  std::vector<TransferDone> posted_;
  std::map<PartId, double> uses_;
  HomeStore store_;
  std::int64_t next_part_ = 0;
};

// Edges.

TEST_F(HomeStoreTest, WhatIsNewIsDirtyAndNothingIsWrittenWhileTheHostSuffices) {
  const PartId part = add(1);
  EXPECT_EQ(state(part), HostState::kDirty);
  EXPECT_EQ(tier_.extents().used(), kPart);  // its room on the drive is taken at once
  for (int i = 0; i < 3; ++i) add(2);
  const PinId pin = store_.pin({part}, Intent::kWrite);
  EXPECT_EQ(store_.state(pin), PinState::kReady);
  store_.written(part);
  store_.unpin(pin);
  EXPECT_EQ(counters().storage_writes, 0);
  EXPECT_EQ(tier_.switches().transfers, 0);
}

TEST_F(HomeStoreTest, AbsentToReadingToCleanForAPin) {
  const PartId part = add_absent(7);
  EXPECT_EQ(reserved(), Bytes(0));
  const PinId pin = store_.pin({part}, Intent::kRead);
  EXPECT_EQ(state(part), HostState::kReading);
  EXPECT_EQ(store_.state(pin), PinState::kGranted);
  EXPECT_TRUE(store_.moving(part));
  EXPECT_EQ(reserved(), kPart);
  finish();
  EXPECT_EQ(state(part), HostState::kClean);
  EXPECT_EQ(store_.state(pin), PinState::kReady);
  EXPECT_TRUE(holds(part, 7));
  store_.unpin(pin);
  EXPECT_EQ(state(part), HostState::kClean);  // as a cache
  EXPECT_EQ(counters().storage_reads, 1);
  EXPECT_EQ(counters().storage_read_bytes, kPart);
}

TEST_F(HomeStoreTest, AbsentToReadingToCleanForAPrefetchThatHoldsNothing) {
  const PartId part = add_absent(7);
  store_.prefetch(std::vector{part});
  EXPECT_EQ(state(part), HostState::kReading);
  store_.prefetch(std::vector{part});  // asks for nothing twice
  finish();
  EXPECT_EQ(state(part), HostState::kClean);
  EXPECT_TRUE(holds(part, 7));
  const PinId all = store_.pin({}, Intent::kRead, kPart * 4);
  EXPECT_EQ(store_.state(all), PinState::kReady);
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(counters().storage_reads, 1);
}

TEST_F(HomeStoreTest, APinJoinsAReadUnderWay) {
  const PartId part = add_absent(7);
  store_.prefetch(std::vector{part});
  const PinId first = store_.pin({part}, Intent::kRead);
  const PinId second = store_.pin({part}, Intent::kRead);
  finish();
  EXPECT_EQ(store_.state(first), PinState::kReady);
  EXPECT_EQ(store_.state(second), PinState::kReady);
  EXPECT_EQ(counters().storage_reads, 1);
}

TEST_F(HomeStoreTest, ReadingToAbsentWhenItFailsAndItsPinsHoldNothing) {
  const PartId part = add_absent(7);
  const PartId other = add(2);
  tier_.switches().fail_reads = true;
  const PinId pin = store_.pin({part, other}, Intent::kRead);
  const auto failed = finish();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->part, part);
  EXPECT_FALSE(failed->device.valid());
  EXPECT_FALSE(failed->retried);
  try {
    std::rethrow_exception(failed->failure);
  } catch (const StorageError& error) {
    EXPECT_NE(std::string(error.what()).find("part 0"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("offset"), std::string::npos) << error.what();
  }
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(store_.state(pin), PinState::kLost);
  EXPECT_EQ(reserved(), kPart);
  tier_.switches().fail_reads = false;
  store_.remove(other);  // nothing holds it
  store_.unpin(pin);
  store_.unpin(pin_ready({part}));
  EXPECT_TRUE(holds(part, 7));
}

TEST_F(HomeStoreTest, BytesThatComeBackWrongAreACorruption) {
  const PartId part = add_absent(7);
  tier_.switches().flip_reads = true;
  const PinId pin = store_.pin({part}, Intent::kRead);
  const auto failed = finish();
  ASSERT_TRUE(failed.has_value());
  EXPECT_THROW(std::rethrow_exception(failed->failure), CorruptionError);
  EXPECT_EQ(reserved(), Bytes(0));
  store_.unpin(pin);
}

TEST_F(HomeStoreTest, AFailedPrefetchIsNobodysFailure) {
  const PartId part = add_absent(7);
  tier_.switches().fail_reads = true;
  store_.prefetch(std::vector{part});
  EXPECT_FALSE(finish().has_value());
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(reserved(), Bytes(0));
}

TEST_F(HomeStoreTest, CleanToDirtyWhenTheHostWrites) {
  const PartId part = add_absent(7);
  write(part, 8);
  EXPECT_EQ(state(part), HostState::kDirty);
  evict(part);
  store_.unpin(pin_ready({part}));
  EXPECT_TRUE(holds(part, 8));
  EXPECT_EQ(counters().storage_writes, 2);
}

TEST_F(HomeStoreTest, CleanToAbsentIsADropAndFrozenPartsAreWrittenOnce) {
  const PartId part = add(7);
  for (int i = 0; i < 5; ++i) {
    evict(part);
    store_.unpin(pin_ready({part}));
    EXPECT_TRUE(holds(part, 7));
  }
  EXPECT_EQ(counters().storage_writes, 1);
  EXPECT_EQ(counters().storage_written_bytes, kPart);
  EXPECT_EQ(counters().host_evictions, 5);
  EXPECT_EQ(tier_.written_bytes(), kPart);
  EXPECT_EQ(tier_.read_bytes(), kPart * 5);
}

TEST_F(HomeStoreTest, DirtyToWritingToCleanToAbsentWhenItsRoomIsWanted) {
  const PartId part = add(7);
  const PinId room = store_.pin({}, Intent::kRead, kPart * 4);
  EXPECT_EQ(state(part), HostState::kWriting);
  EXPECT_EQ(store_.state(room), PinState::kWaiting);
  store_.serve();
  EXPECT_EQ(counters().storage_writes, 1);  // not started twice
  finish();
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(store_.state(room), PinState::kReady);
  EXPECT_EQ(reserved(), kPart * 4);
  const Reservation taken = store_.take_room(room);
  store_.unpin(room);
  EXPECT_EQ(taken.bytes(), kPart * 4);
}

TEST_F(HomeStoreTest, WritingMayBeReadAndNotChanged) {
  const PartId part = add(7);
  const PinId room = store_.pin({}, Intent::kRead, kPart * 4);
  const PinId reader = store_.pin({part}, Intent::kRead);
  const PinId writer = store_.pin({part}, Intent::kWrite);
  EXPECT_EQ(state(part), HostState::kWriting);
  EXPECT_EQ(store_.state(reader), PinState::kReady);
  EXPECT_EQ(store_.state(writer), PinState::kGranted);
  EXPECT_THROW(store_.written(part), InternalError);
  finish();
  EXPECT_EQ(state(part), HostState::kClean);  // written, and held
  EXPECT_EQ(store_.state(writer), PinState::kReady);
  EXPECT_EQ(store_.state(room), PinState::kWaiting);
  store_.unpin(reader);
  store_.unpin(writer);
  EXPECT_EQ(store_.state(room), PinState::kReady);
  EXPECT_EQ(state(part), HostState::kAbsent);
}

TEST_F(HomeStoreTest, WritingToCleanAtTheSecondTry) {
  const PartId part = add(7);
  tier_.switches().fail_after = 0;
  const PinId room = store_.pin({}, Intent::kRead, kPart * 4);
  EXPECT_FALSE(finish().has_value());
  EXPECT_EQ(state(part), HostState::kWriting);
  EXPECT_FALSE(finish().has_value());
  EXPECT_EQ(state(part), HostState::kAbsent);
  store_.unpin(room);
  store_.unpin(pin_ready({part}));
  EXPECT_TRUE(holds(part, 7));
  EXPECT_EQ(counters().storage_writes, 2);
}

TEST_F(HomeStoreTest, WritingToDirtyWhenItFailsTwiceAndNothingIsLost) {
  const PartId part = add(7);
  tier_.switches().fail_writes = true;
  const PinId room = store_.pin({}, Intent::kRead, kPart * 4);
  EXPECT_FALSE(finish().has_value());
  const auto failed = finish();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->part, part);
  EXPECT_TRUE(failed->retried);
  EXPECT_THROW(std::rethrow_exception(failed->failure), StorageError);
  EXPECT_EQ(state(part), HostState::kDirty);
  store_.serve();
  EXPECT_FALSE(store_.moving(part));  // not for ever: its job is to end, and that gives the room
  EXPECT_EQ(store_.state(room), PinState::kWaiting);
  EXPECT_EQ(store_.state(store_.pin({part}, Intent::kRead)), PinState::kReady);
  EXPECT_TRUE(holds(part, 7));
}

TEST_F(HomeStoreTest, RemovingAPartThatCannotBeWrittenGivesItsRoomToWhoeverWaits) {
  const PartId part = add(7);
  tier_.switches().fail_writes = true;
  const PinId room = store_.pin({}, Intent::kRead, kPart * 4);
  finish();
  finish();
  store_.remove(part);
  EXPECT_EQ(store_.state(room), PinState::kReady);
  EXPECT_EQ(tier_.extents().used(), Bytes(0));
}

TEST_F(HomeStoreTest, ADeviceThatOvertakesADirtyCopyMakesItGoUnwritten) {
  const PartId part = add(7);
  store_.overtaken(part);
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_EQ(counters().storage_writes, 0);
  EXPECT_EQ(counters().host_evictions, 0);  // lost, not evicted
}

TEST_F(HomeStoreTest, AbsentToReceivingToDirty) {
  const PartId part = add_absent(7);
  store_.overtaken(part);
  store_.prefetch(std::vector{part});
  EXPECT_EQ(state(part), HostState::kAbsent);  // what the extent has is old
  const PinId pin = store_.pin({part}, Intent::kReceive);
  EXPECT_EQ(state(part), HostState::kReceiving);
  EXPECT_EQ(store_.state(pin), PinState::kReady);
  fill(part, 9);
  store_.received(part);
  store_.unpin(pin);
  EXPECT_EQ(state(part), HostState::kDirty);
  evict(part);
  store_.unpin(pin_ready({part}));
  EXPECT_TRUE(holds(part, 9));
}

TEST_F(HomeStoreTest, ReceivingToAbsentWhenNothingCameAndNobodyWaits) {
  const PartId part = add_absent(7);
  store_.overtaken(part);
  const PinId owner = store_.pin({part}, Intent::kWrite);
  const PinId pin = store_.pin({part}, Intent::kReceive);
  EXPECT_EQ(store_.state(owner), PinState::kGranted);
  store_.unpin(pin);
  EXPECT_EQ(state(part), HostState::kReceiving);  // the owner still waits
  store_.unpin(owner);
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(reserved(), Bytes(0));
}

TEST_F(HomeStoreTest, ReadingToAbsentWhenADeviceOvertakesIt) {
  const PartId part = add_absent(7);
  store_.prefetch(std::vector{part});
  store_.overtaken(part);
  EXPECT_EQ(state(part), HostState::kReading);
  finish();
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(reserved(), Bytes(0));
}

TEST_F(HomeStoreTest, ReadingToReceivingWhenADeviceOvertakesItAndIsWaitedFor) {
  const PartId part = add_absent(7);
  store_.prefetch(std::vector{part});
  store_.overtaken(part);
  tier_.switches().fail_reads = true;  // and whatever becomes of the read
  const PinId pin = store_.pin({part}, Intent::kReceive);
  EXPECT_EQ(store_.state(pin), PinState::kGranted);
  EXPECT_FALSE(finish().has_value());
  EXPECT_EQ(state(part), HostState::kReceiving);
  EXPECT_EQ(store_.state(pin), PinState::kReady);
}

TEST_F(HomeStoreTest, WritingToAbsentWhenADeviceOvertakesIt) {
  const PartId part = add(7);
  const PinId room = store_.pin({}, Intent::kRead, kPart * 4);
  tier_.switches().fail_writes = true;
  store_.overtaken(part);
  EXPECT_EQ(state(part), HostState::kWriting);
  EXPECT_FALSE(finish().has_value());
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(counters().storage_writes, 1);  // old bytes are not tried again
  EXPECT_EQ(store_.state(room), PinState::kReady);
}

TEST_F(HomeStoreTest, WritingToReceivingWhenADeviceOvertakesItAndIsWaitedFor) {
  const PartId part = add(7);
  store_.pin({}, Intent::kRead, kPart * 4);
  store_.overtaken(part);
  const PinId pin = store_.pin({part}, Intent::kReceive);
  EXPECT_EQ(store_.state(pin), PinState::kGranted);  // the drive still reads the memory
  finish();
  EXPECT_EQ(store_.state(pin), PinState::kReady);
}

TEST_F(HomeStoreTest, CleanAndHeldToReceivingWhenADeviceOvertakesIt) {
  const PartId part = add_absent(7);
  const PinId upload = pin_ready({part});  // of an old version, not ended yet
  store_.overtaken(part);
  EXPECT_EQ(state(part), HostState::kReceiving);
  store_.unpin(upload);
  EXPECT_EQ(state(part), HostState::kAbsent);
}

// Pins.

TEST_F(HomeStoreTest, APinIsGrantedWholeOrHoldsNothing) {
  const PartId a = add_absent(1);
  const PartId b = add_absent(2);
  const PinId holder = store_.pin({}, Intent::kRead, kPart * 3);
  const PinId both = store_.pin({a, b}, Intent::kWrite);
  EXPECT_EQ(store_.state(both), PinState::kWaiting);
  EXPECT_EQ(state(a), HostState::kAbsent);
  EXPECT_EQ(reserved(), kPart * 3);
  store_.unpin(holder);
  EXPECT_EQ(store_.state(both), PinState::kGranted);  // by itself
  finish_until_ready(both);
  EXPECT_TRUE(holds(a, 1));
  EXPECT_TRUE(holds(b, 2));
}

TEST_F(HomeStoreTest, RoomIsGivenToTheOldestThatWaits) {
  const PartId a = add_absent(1);
  const PinId holder = store_.pin({}, Intent::kRead, kPart * 3);
  const PinId large = store_.pin({}, Intent::kRead, kPart * 2);
  const PinId small = store_.pin({a}, Intent::kRead);
  EXPECT_EQ(store_.state(large), PinState::kWaiting);
  EXPECT_EQ(store_.state(small), PinState::kWaiting);  // there is room, but not for it
  store_.unpin(holder);
  EXPECT_EQ(store_.state(large), PinState::kReady);
  EXPECT_EQ(store_.state(small), PinState::kGranted);
}

TEST_F(HomeStoreTest, APinThatWaitsAndGoesLetsThoseBehindItPass) {
  const PartId a = add_absent(1);
  store_.pin({}, Intent::kRead, kPart * 3);
  const PinId large = store_.pin({}, Intent::kRead, kPart * 2);
  const PinId small = store_.pin({a}, Intent::kRead);
  store_.unpin(large);
  EXPECT_EQ(store_.state(small), PinState::kGranted);
}

TEST_F(HomeStoreTest, WhoNeedsNoRoomPassesThoseThatWaitForIt) {
  const PartId here = add(1);
  const PinId holder = store_.pin({here}, Intent::kRead);
  const PinId large = store_.pin({}, Intent::kRead, kPart * 4);
  const PinId hit = store_.pin({here}, Intent::kWrite);
  EXPECT_EQ(store_.state(hit), PinState::kReady);
  EXPECT_EQ(store_.state(large), PinState::kWaiting);
  store_.unpin(holder);
  store_.unpin(hit);
  finish();
  EXPECT_EQ(store_.state(large), PinState::kReady);
}

TEST_F(HomeStoreTest, ItsOwnPartsAreNotEvictedForAPin) {
  const PartId a = add(1);
  const PartId b = add_absent(2);
  const PartId c = add_absent(3);
  const PartId d = add(4);
  uses_ = {{a, 100.0}, {d, 1.0}};
  const PinId holder = store_.pin({}, Intent::kRead, kPart);
  const PinId three = store_.pin({a, b, c}, Intent::kRead);
  EXPECT_EQ(state(a), HostState::kDirty);
  EXPECT_EQ(state(d), HostState::kWriting);
  finish_until_ready(three);
  EXPECT_TRUE(holds(a, 1));
  EXPECT_TRUE(holds(b, 2));
  EXPECT_TRUE(holds(c, 3));
  store_.unpin(holder);
}

TEST_F(HomeStoreTest, RoomThatComesBackFromOutsideIsSeenWhenServed) {
  auto outside = tier_.host().try_reserve(kPart * 4);
  const PinId room = store_.pin({}, Intent::kRead, kPart);
  outside->release();
  EXPECT_EQ(store_.state(room), PinState::kWaiting);
  store_.serve();
  EXPECT_EQ(store_.state(room), PinState::kReady);
}

TEST_F(HomeStoreTest, MemoryThatIsRefusedIsAFailureOfThePartAndAPinThatHoldsNothing) {
  HostArena small(Bytes(64 << 20));
  TierBudget host("host", Bytes(1) * (256 << 20));
  std::vector<HostBuffer> taken;
  for (int i = 0; i < 2; ++i) {
    taken.push_back(small.allocate(host.try_reserve(Bytes(24 << 20)).value()));
  }
  HomeStore store(
      {&tier_.extents(), &host, &small},
      [this](TransferDone done) { posted_.push_back(std::move(done)); }, false);
  const PartId part(0);
  store.add(part, "part", small.allocate(host.try_reserve(Bytes(16 << 20) - Bytes(1)).value()),
            false);
  store.remove(part);
  taken.push_back(small.allocate(host.try_reserve(Bytes(16 << 20)).value()));
  const PartId second(1);
  store.add(second, "part", tier_.buffer(kPart), true);
  store.overtaken(second);
  const PinId pin = store.pin({second}, Intent::kReceive);
  EXPECT_EQ(store.state(pin), PinState::kLost);
  ASSERT_EQ(posted_.size(), 1U);
  EXPECT_THROW(std::rethrow_exception(posted_[0].failure), OutOfHostMemory);
  EXPECT_TRUE(store.moving(second));  // until its job has heard of it
  store.heard(second);
  EXPECT_FALSE(store.moving(second));
  EXPECT_EQ(host.reserved(), Bytes(64 << 20));
  store.unpin(pin);
}

TEST_F(HomeStoreTest, AFullDriveIsRefusedWhenThePartIsAdded) {
  std::vector<PartId> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(add_absent(1));
  EXPECT_THROW(add(1), StorageError);
  EXPECT_EQ(reserved(), Bytes(0));
  store_.remove(parts.back());
  add(1);
}

TEST_F(HomeStoreTest, ATakenPartIsGoneFromTheDriveAndPaidForByItsBuffer) {
  const PartId part = add_absent(7);
  const PinId pin = pin_ready({part}, Intent::kWrite);
  {
    const HostBuffer buffer = store_.take(pin, part);
    EXPECT_EQ(buffer.size(), kPart);
    EXPECT_EQ(buffer.data()[5], std::byte{7});
    store_.unpin(pin);
    EXPECT_EQ(tier_.extents().used(), Bytes(0));
    EXPECT_EQ(reserved(), kPart);
    EXPECT_THROW(store_.host_state(part), InternalError);
  }
  EXPECT_EQ(reserved(), Bytes(0));
}

TEST_F(HomeStoreTest, APartThatIsHeldOrMovedCannotBeRemoved) {
  const PartId part = add_absent(7);
  store_.prefetch(std::vector{part});
  EXPECT_THROW(store_.remove(part), InternalError);
  finish();
  const PinId pin = store_.pin({part}, Intent::kRead);
  EXPECT_THROW(store_.remove(part), InternalError);
  store_.unpin(pin);
  store_.remove(part);
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_EQ(tier_.extents().used(), Bytes(0));
}

// What goes first.

TEST_F(HomeStoreTest, TheCopyThatIsNeededLastGoesFirst) {
  std::vector<PartId> parts;
  for (unsigned char i = 0; i < 4; ++i) {
    parts.push_back(add_absent(i));
    store_.unpin(pin_ready({parts.back()}));
  }
  uses_ = {{parts[0], 3.0}, {parts[1], 9.0}, {parts[2], 1.0}, {parts[3], 5.0}};
  store_.pin({}, Intent::kRead, kPart * 2);
  EXPECT_EQ(state(parts[1]), HostState::kAbsent);
  EXPECT_EQ(state(parts[3]), HostState::kAbsent);
  EXPECT_EQ(state(parts[0]), HostState::kClean);
  EXPECT_EQ(state(parts[2]), HostState::kClean);
}

TEST_F(HomeStoreTest, ADirtyCopyGoesFirstOnlyIfItIsNeededMoreThanTwiceAsLate) {
  const PartId clean = add_absent(1);
  store_.unpin(pin_ready({clean}));
  const PartId dirty = add(2);
  uses_ = {{clean, 4.0}, {dirty, 8.0}};
  const PinId first = store_.pin({}, Intent::kRead, kPart * 3);
  EXPECT_EQ(state(clean), HostState::kAbsent);
  EXPECT_EQ(state(dirty), HostState::kDirty);
  store_.unpin(first);
  store_.unpin(pin_ready({clean}));
  uses_[dirty] = 10.0;
  store_.pin({}, Intent::kRead, kPart * 3);
  EXPECT_EQ(state(clean), HostState::kClean);
  EXPECT_EQ(state(dirty), HostState::kWriting);
}

TEST_F(HomeStoreTest, APartThatSomebodyWaitsForGoesLast) {
  const PartId absent = add_absent(3);
  const PartId wanted = add_absent(1);
  const PartId other = add_absent(2);
  uses_ = {{wanted, 100.0}, {other, 1.0}};
  const PinId both = pin_ready({wanted, other});
  store_.pin({}, Intent::kRead, kPart * 2);
  const PinId oldest = store_.pin({}, Intent::kRead, kPart);
  const PinId second = store_.pin({wanted, absent}, Intent::kRead);
  store_.unpin(both);
  EXPECT_EQ(store_.state(oldest), PinState::kReady);
  EXPECT_EQ(store_.state(second), PinState::kWaiting);
  EXPECT_EQ(state(wanted), HostState::kClean);
  EXPECT_EQ(state(other), HostState::kAbsent);
}

// Prefetches.

TEST_F(HomeStoreTest, APrefetchNeverDelaysADemand) {
  const PartId part = add_absent(1);
  const PinId holder = store_.pin({}, Intent::kRead, kPart * 2);
  const PinId waiting = store_.pin({}, Intent::kRead, kPart * 3);
  store_.prefetch(std::vector{part});  // there is room, but somebody waits for it
  EXPECT_EQ(state(part), HostState::kAbsent);
  store_.unpin(waiting);
  store_.unpin(holder);
  store_.prefetch(std::vector{part});
  EXPECT_EQ(state(part), HostState::kReading);
}

TEST_F(HomeStoreTest, APrefetchTakesTheRoomOfWhatIsNeededLaterAlone) {
  const PartId sooner = add_absent(1);
  const PartId later = add_absent(2);
  const PartId part = add_absent(3);
  for (const PartId each : {sooner, later}) store_.unpin(pin_ready({each}));
  store_.pin({}, Intent::kRead, kPart * 2);
  uses_ = {{sooner, 1.0}, {part, 2.0}, {later, 2.0}};
  store_.prefetch(std::vector{part});
  EXPECT_EQ(state(part), HostState::kAbsent);  // as soon is not later
  uses_[later] = 3.0;
  store_.prefetch(std::vector{part});
  EXPECT_EQ(state(part), HostState::kReading);
  EXPECT_EQ(state(later), HostState::kAbsent);
  EXPECT_EQ(state(sooner), HostState::kClean);
  finish();
}

TEST_F(HomeStoreTest, APrefetchThatCannotFitEvictsNothing) {
  const PartId later = add_absent(2);
  const PartId large = add_absent(3, kPart * 3);
  store_.unpin(pin_ready({later}));
  store_.pin({}, Intent::kRead, kPart * 2);
  uses_ = {{large, 1.0}, {later, 5.0}};
  store_.prefetch(std::vector{large});
  EXPECT_EQ(state(later), HostState::kClean);
  EXPECT_EQ(state(large), HostState::kAbsent);
}

TEST_F(HomeStoreTest, APrefetchHasLaterDirtyCopiesWrittenAheadAndNoneTwice) {
  const PartId part = add_absent(1);
  std::vector<PartId> dirty;
  for (unsigned char i = 0; i < 4; ++i) dirty.push_back(add(10 + i));
  uses_ = {{part, 1.0}, {dirty[0], 2.0}, {dirty[1], 5.0}, {dirty[2], 3.0}, {dirty[3], 4.0}};
  store_.prefetch(std::vector{part});
  store_.prefetch(std::vector{part});
  EXPECT_EQ(state(dirty[1]), HostState::kWriting);
  EXPECT_EQ(counters().storage_writes, 2);  // one of them in add_absent
  finish();
  EXPECT_EQ(state(dirty[1]), HostState::kClean);  // it goes when somebody comes for its room
  store_.prefetch(std::vector{part});
  EXPECT_EQ(state(dirty[1]), HostState::kAbsent);
  EXPECT_EQ(state(part), HostState::kReading);
  finish();
  EXPECT_TRUE(holds(part, 1));
}

TEST_F(HomeStoreTest, PrefetchesGetRoomInTheirOrderAndEnoughIsWrittenForAll) {
  const PartId first = add_absent(1, kPart * 2);
  const PartId second = add_absent(2);
  std::vector<PartId> dirty;
  for (unsigned char i = 0; i < 4; ++i) dirty.push_back(add(10 + i));
  uses_ = {{first, 1.0}, {second, 2.0}};
  for (const PartId part : dirty) uses_[part] = 5.0 + static_cast<double>(part.value());
  const std::int64_t before = counters().storage_writes;
  const std::vector<PartId> both{first, second};
  store_.prefetch(both);
  EXPECT_EQ(counters().storage_writes, before + 3);
  finish();
  store_.prefetch(both);
  EXPECT_EQ(state(second), HostState::kAbsent);  // the room for one part is for the first
  finish();
  finish();
  store_.prefetch(both);
  EXPECT_EQ(state(first), HostState::kReading);
  EXPECT_EQ(state(second), HostState::kReading);
  EXPECT_EQ(counters().storage_writes, before + 3);
  EXPECT_EQ(state(dirty[0]), HostState::kDirty);
}

// Evicting at once.

class HomeStoreEvictingTest : public HomeStoreTest {
 protected:
  HomeStoreEvictingTest() : HomeStoreTest(true) {}
};

TEST_F(HomeStoreEvictingTest, WhatIsNewIsWrittenAndGoes) {
  const PartId part = add(7);
  EXPECT_EQ(state(part), HostState::kWriting);
  finish();
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(reserved(), Bytes(0));
}

TEST_F(HomeStoreEvictingTest, ACopyGoesWithItsLastPin) {
  const PartId part = add(7);
  finish();
  const PinId first = pin_ready({part});
  const PinId second = pin_ready({part}, Intent::kWrite);
  fill(part, 8);
  store_.written(part);
  store_.unpin(second);
  EXPECT_EQ(state(part), HostState::kDirty);
  store_.unpin(first);
  EXPECT_EQ(state(part), HostState::kWriting);
  finish();
  EXPECT_EQ(state(part), HostState::kAbsent);
  store_.prefetch(std::vector{part});
  EXPECT_EQ(state(part), HostState::kAbsent);  // nobody would hold it
  store_.unpin(pin_ready({part}));
  EXPECT_EQ(state(part), HostState::kAbsent);
  EXPECT_EQ(counters().storage_writes, 2);
}

TEST_F(HomeStoreEvictingTest, WhatCannotBeWrittenStaysAndIsNotTriedForEver) {
  tier_.switches().fail_writes = true;
  const PartId part = add(7);
  EXPECT_FALSE(finish().has_value());
  EXPECT_TRUE(finish().has_value());
  EXPECT_EQ(state(part), HostState::kDirty);
  EXPECT_EQ(counters().storage_writes, 2);
  store_.unpin(pin_ready({part}));
  EXPECT_TRUE(holds(part, 7));
}

}  // namespace
}  // namespace hydra
