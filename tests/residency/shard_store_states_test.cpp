// One test per edge of a copy's life, as the table in shard_store.h lists them.

#include <gtest/gtest.h>

#include "shard_store_fixture.h"

namespace hydra {
namespace {

class ShardStoreStatesTest : public ShardStoreFixture {
 protected:
  ShardStoreStatesTest() : ShardStoreFixture({Bytes(256 << 10), Bytes(256 << 10)}) {}

  static constexpr Bytes kPart{64 << 10};
  static constexpr DeviceId kFirst{0};
  static constexpr DeviceId kSecond{1};

  Bytes reserved(DeviceId device = kFirst) { return store().ledger(device).reserved(); }
  bool there(PartId part, DeviceId device = kFirst) {
    return store().missing(std::vector{part}, device) == Bytes(0);
  }
  /// Leaves the part dirty and unclaimed on a device.
  void write_on(DeviceId device, PartId part, std::uint64_t content) {
    const auto claim = claim_ready(device, {part});
    write(claim, part, content);
    store().close_claim(claim);
  }
};

TEST_F(ShardStoreStatesTest, AbsentToLoadingToReady) {
  const PartId part = add(kPart, 1);
  const auto claim = store().open_claim(kFirst, {part});
  EXPECT_EQ(store().missing(std::vector{part}, kFirst), kPart);
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kWaiting);
  EXPECT_EQ(reserved(), kPart);
  EXPECT_TRUE(there(part));  // on its way
  EXPECT_FALSE(store().idle(part));
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kWaiting);  // asks for nothing twice
  finish_one();
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kReady);
  EXPECT_TRUE(device_holds(claim, part, 1));
  EXPECT_EQ(store().counters().loads, 1);
  EXPECT_EQ(uploaded(kFirst), kPart);
  store().close_claim(claim);
  EXPECT_TRUE(store().idle(part));
}

TEST_F(ShardStoreStatesTest, LoadingToAbsentWhenTheCopyFails) {
  const PartId part = add(kPart, 1);
  device(kFirst).fail_copy_after(0);
  const auto claim = store().open_claim(kFirst, {part});
  store().advance(claim);
  EXPECT_NE(finish_one().failure, nullptr);
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_EQ(device(kFirst).stats().in_use, Bytes(0));
  EXPECT_FALSE(there(part));
  advance_until_ready(claim);  // the claim is as it was before the try
  EXPECT_TRUE(device_holds(claim, part, 1));
  store().close_claim(claim);
  EXPECT_EQ(store().counters().loads, 2);
}

TEST_F(ShardStoreStatesTest, LoadingToAbsentWhenTheDeviceRefusesTheMemory) {
  const PartId part = add(kPart, 1);
  device(kFirst).fail_allocation_after(0);
  const auto claim = store().open_claim(kFirst, {part});
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kWaiting);
  EXPECT_THROW(std::rethrow_exception(finish_one().failure), OutOfDeviceMemory);
  EXPECT_EQ(reserved(), Bytes(0));
  store().close_claim(claim);
  EXPECT_TRUE(store().idle(part));
}

TEST_F(ShardStoreStatesTest, LoadingToReadyThoughItsClaimWasClosedMeanwhile) {
  const PartId part = add(kPart, 1);
  const auto claim = store().open_claim(kFirst, {part});
  store().advance(claim);
  store().close_claim(claim);
  EXPECT_FALSE(store().idle(part));  // the upload still reads the home
  finish_one();
  EXPECT_TRUE(store().idle(part));
  EXPECT_TRUE(there(part));  // as a cache
  EXPECT_EQ(store().counters().evictions, 0);
}

TEST_F(ShardStoreStatesTest, LoadingToAbsentWhenItsPartWasWrittenElsewhereMeanwhile) {
  const PartId part = add(kPart, 1);
  hold_link(kSecond);
  const auto given_up = store().open_claim(kSecond, {part});
  store().advance(given_up);
  store().close_claim(given_up);
  write_on(kFirst, part, 2);
  EXPECT_FALSE(there(part, kSecond));  // what is on its way is of an old version
  release_link(kSecond);
  finish_one();
  EXPECT_EQ(reserved(kSecond), Bytes(0));
  EXPECT_FALSE(there(part, kSecond));
  settle(part);
  EXPECT_TRUE(host_holds(part, 2));
}

TEST_F(ShardStoreStatesTest, NothingIsWrittenBackWhileAnOutdatedLoadReadsTheHome) {
  const PartId part = add(kPart, 1);
  hold_link(kSecond);
  const auto given_up = store().open_claim(kSecond, {part});
  store().advance(given_up);
  store().close_claim(given_up);
  write_on(kFirst, part, 2);
  EXPECT_FALSE(store().settle(part));
  EXPECT_FALSE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
  EXPECT_FALSE(store().clear_device(kFirst));
  EXPECT_EQ(store().counters().write_backs, 0);
  release_link(kSecond);
  finish_one();
  EXPECT_FALSE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
  EXPECT_EQ(store().counters().write_backs, 1);
  finish_one();
  EXPECT_TRUE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
  EXPECT_TRUE(host_holds(part, 2));
}

TEST_F(ShardStoreStatesTest, ReadyToAbsentWhenCleanUnclaimedAndItsRoomIsWanted) {
  const PartId part = add(kPart, 1);
  store().close_claim(claim_ready(kFirst, {part}));
  EXPECT_TRUE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
  EXPECT_FALSE(there(part));
  EXPECT_EQ(store().counters().evictions, 1);
  EXPECT_EQ(store().counters().write_backs, 0);
  EXPECT_EQ(downloaded(kFirst), Bytes(0));
}

TEST_F(ShardStoreStatesTest, ReadyToAbsentWhenItsPartWasWrittenElsewhere) {
  const PartId part = add(kPart, 1);
  store().close_claim(claim_ready(kFirst, {part}));
  write_on(kSecond, part, 2);
  EXPECT_FALSE(there(part));
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_EQ(store().counters().evictions, 0);  // lost, not evicted
}

TEST_F(ShardStoreStatesTest, ReadyStaysWhenClaimedHoweverMuchRoomIsWanted) {
  const PartId part = add(kPart, 1);
  const auto claim = claim_ready(kFirst, {part});
  write(claim, part, 2);
  EXPECT_FALSE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
  EXPECT_FALSE(store().clear_device(kFirst));
  EXPECT_FALSE(store().settle(part));
  EXPECT_EQ(transfers_under_way(), 0);
  EXPECT_TRUE(device_holds(claim, part, 2));
  store().close_claim(claim);
}

TEST_F(ShardStoreStatesTest, ReadyToLeavingToAbsentWhenDirtyAndItsRoomIsWanted) {
  const PartId part = add(kPart, 1);
  write_on(kFirst, part, 2);
  EXPECT_TRUE(host_holds(part, 1));
  EXPECT_FALSE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
  EXPECT_EQ(store().counters().write_backs, 1);
  EXPECT_FALSE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
  EXPECT_EQ(store().counters().write_backs, 1);  // not started twice
  EXPECT_EQ(reserved(), kPart);                  // its room is free only once its bytes are safe
  EXPECT_FALSE(store().idle(part));
  finish_one();
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_TRUE(store().idle(part));
  EXPECT_TRUE(host_holds(part, 2));
  EXPECT_EQ(downloaded(kFirst), kPart);
  EXPECT_TRUE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
}

TEST_F(ShardStoreStatesTest, ReadyToLeavingWhenDirtyAndItsBytesAreWantedElsewhere) {
  const PartId part = add(kPart, 1);
  write_on(kFirst, part, 2);
  const auto claim = store().open_claim(kSecond, {part});
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kWaiting);
  EXPECT_EQ(store().counters().write_backs, 1);
  EXPECT_EQ(reserved(kSecond), Bytes(0));  // no old bytes are loaded meanwhile
  advance_until_ready(claim);
  EXPECT_TRUE(device_holds(claim, part, 2));
  EXPECT_EQ(downloaded(kFirst), kPart);
  EXPECT_EQ(uploaded(kSecond), kPart);
  store().close_claim(claim);
}

TEST_F(ShardStoreStatesTest, LeavingToReadyWhenItIsClaimedAgainMeanwhileAndThenClean) {
  const PartId part = add(kPart, 1);
  write_on(kFirst, part, 2);
  EXPECT_FALSE(store().settle(part));
  const auto claim = store().open_claim(kFirst, {part});
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kWaiting);
  finish_one();
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kReady);
  EXPECT_TRUE(device_holds(claim, part, 2));
  EXPECT_TRUE(store().settle(part));  // clean: nothing is to be written back
  store().close_claim(claim);
  EXPECT_EQ(uploaded(kFirst), kPart);  // it never left
  EXPECT_EQ(store().counters().loads, 1);
  EXPECT_EQ(store().counters().write_backs, 1);
  EXPECT_TRUE(store().clear_device(kFirst));
  EXPECT_EQ(downloaded(kFirst), kPart);
}

TEST_F(ShardStoreStatesTest, LeavingToReadyAndStillDirtyWhenTheCopyFails) {
  const PartId part = add(kPart, 1);
  write_on(kFirst, part, 2);
  device(kFirst).fail_copy_after(0);
  EXPECT_FALSE(store().settle(part));
  EXPECT_NE(finish_one().failure, nullptr);
  EXPECT_EQ(reserved(), kPart);
  EXPECT_TRUE(there(part));
  const auto claim = claim_ready(kFirst, {part});
  EXPECT_TRUE(device_holds(claim, part, 2));
  store().close_claim(claim);
  settle(part);
  EXPECT_TRUE(host_holds(part, 2));
  EXPECT_EQ(store().counters().write_backs, 2);
}

TEST_F(ShardStoreStatesTest, LeavingToReadyAndStillDirtyWhenTheCopyFailsUnderAClaim) {
  const PartId part = add(kPart, 1);
  write_on(kFirst, part, 2);
  device(kFirst).fail_copy_after(0);
  store().settle(part);
  const auto claim = store().open_claim(kFirst, {part});
  store().advance(claim);
  finish_one();
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kReady);
  EXPECT_TRUE(device_holds(claim, part, 2));
  EXPECT_FALSE(store().settle(part));
  store().close_claim(claim);
  settle(part);
  EXPECT_TRUE(host_holds(part, 2));
}

TEST_F(ShardStoreStatesTest, TwoClaimsOfOneDeviceShareACopy) {
  const PartId part = add(kPart, 1);
  const auto first = store().open_claim(kFirst, {part});
  const auto second = store().open_claim(kFirst, {part});
  store().advance(first);
  store().advance(second);
  finish_one();
  EXPECT_EQ(store().advance(first), ShardStore::ClaimState::kReady);
  EXPECT_EQ(store().advance(second), ShardStore::ClaimState::kReady);
  EXPECT_EQ(store().device_data(first, part), store().device_data(second, part));
  EXPECT_EQ(store().counters().loads, 1);
  store().close_claim(first);
  EXPECT_FALSE(store().reserve_workspace(kFirst, Bytes(256 << 10)));  // the second still holds
  store().close_claim(second);
  EXPECT_TRUE(store().reserve_workspace(kFirst, Bytes(256 << 10)));
}

TEST_F(ShardStoreStatesTest, AFailedLoadIsLostByEveryClaimThatHeldIt) {
  const PartId part = add(kPart, 1);
  device(kFirst).fail_copy_after(0);
  const auto first = store().open_claim(kFirst, {part});
  const auto second = store().open_claim(kFirst, {part});
  store().advance(first);
  store().advance(second);
  finish_one();
  store().close_claim(first);
  advance_until_ready(second);
  EXPECT_TRUE(device_holds(second, part, 1));
  store().close_claim(second);
  EXPECT_TRUE(store().idle(part));
}

TEST_F(ShardStoreStatesTest, ReadersOnTwoDevicesHoldOneVersion) {
  const PartId part = add(kPart, 1);
  const auto first = claim_ready(kFirst, {part});
  const auto second = claim_ready(kSecond, {part});
  EXPECT_TRUE(device_holds(first, part, 1));
  EXPECT_TRUE(device_holds(second, part, 1));
  EXPECT_THROW(store().mark_written(first, part), InternalError);  // the other one still reads
  store().close_claim(second);
  write(first, part, 2);
  EXPECT_FALSE(there(part, kSecond));
  store().close_claim(first);
}

TEST_F(ShardStoreStatesTest, APartThatIsClaimedWrittenOrUnderWayCannotBeRemoved) {
  const PartId part = add(kPart, 1);
  const auto claim = store().open_claim(kFirst, {part});
  EXPECT_THROW(store().remove(part), InternalError);
  EXPECT_THROW(store().begin_host_write(part), InternalError);
  store().advance(claim);
  store().close_claim(claim);
  EXPECT_THROW(store().take_home(part), InternalError);  // still loading
  finish_one();
  store().begin_host_write(part);
  EXPECT_THROW(store().remove(part), InternalError);
  store().end_host_write(part);
  write_on(kFirst, part, 2);
  EXPECT_THROW(store().take_home(part), InternalError);  // dirty: the home is old
  EXPECT_THROW(store().begin_host_write(part), InternalError);
  settle(part);
  const HostBuffer home = store().take_home(part);
  EXPECT_TRUE(holds(home.data(), home.size(), 2));
  EXPECT_THROW(store().bytes(part), InternalError);  // there is no such part
}

TEST_F(ShardStoreStatesTest, RemovingAPartGivesBackItsCopiesAndItsHomeDirtyOrNot) {
  const PartId clean = add(kPart, 1);
  const PartId dirty = add(kPart, 1);
  store().close_claim(claim_ready(kFirst, {clean}));
  write_on(kFirst, dirty, 2);
  store().remove(clean);
  store().remove(dirty);
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_EQ(device(kFirst).stats().in_use, Bytes(0));
  EXPECT_EQ(host().reserved(), Bytes(0));
  EXPECT_EQ(downloaded(kFirst), Bytes(0));
}

TEST_F(ShardStoreStatesTest, LoadsWaitForAWriteByTheHost) {
  const PartId part = add(kPart, 1);
  fill(store().begin_host_write(part), kPart, 5);
  const auto claim = store().open_claim(kFirst, {part});
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kWaiting);
  EXPECT_EQ(transfers_under_way(), 0);
  EXPECT_EQ(store().counters().loads, 0);
  store().end_host_write(part);
  advance_until_ready(claim);
  EXPECT_TRUE(device_holds(claim, part, 5));
  store().close_claim(claim);
}

TEST_F(ShardStoreStatesTest, AClaimLargerThanTheDeviceHoldsWhatItHasAndWaits) {
  std::vector<PartId> parts;
  for (std::uint64_t i = 0; i < 5; ++i) parts.push_back(add(kPart, i));
  const auto claim = store().open_claim(kFirst, parts);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kWaiting);
    finish_one();
  }
  EXPECT_EQ(store().advance(claim), ShardStore::ClaimState::kWaiting);
  EXPECT_EQ(transfers_under_way(), 0);
  EXPECT_EQ(store().missing(parts, kFirst), kPart);
  EXPECT_LE(store().ledger(kFirst).peak(), Bytes(256 << 10));
  store().close_claim(claim);
}

TEST_F(ShardStoreStatesTest, WhatCanNeverFitEvictsNothing) {
  const PartId part = add(kPart, 1);
  store().close_claim(claim_ready(kFirst, {part}));
  EXPECT_FALSE(store().reserve_workspace(kFirst, Bytes((256 << 10) + 1)));
  EXPECT_TRUE(there(part));
}

TEST_F(ShardStoreStatesTest, CleanCopiesGoBeforeDirtyOnesAndOnlyAsManyAsAreNeeded) {
  const PartId clean = add(kPart, 1);
  const PartId dirty = add(kPart, 1);
  const PartId kept = add(kPart, 1);
  write_on(kFirst, dirty, 2);
  store().close_claim(claim_ready(kFirst, {clean}));
  store().close_claim(claim_ready(kFirst, {kept}));
  store().set_next_use([&](PartId part) {
    return part == dirty ? 9.0 : part == clean ? 5.0 : 1.0;
  });
  EXPECT_TRUE(store().reserve_workspace(kFirst, Bytes(128 << 10)));
  EXPECT_FALSE(there(clean));
  EXPECT_TRUE(there(dirty));
  EXPECT_TRUE(there(kept));
}

TEST_F(ShardStoreStatesTest, DirtyCopiesLeaveInTheOrderOfTheirNextUseAndOnlyAsManyAsAreNeeded) {
  std::vector<PartId> parts;
  for (std::uint64_t i = 0; i < 4; ++i) {
    parts.push_back(add(kPart, i));
    write_on(kFirst, parts.back(), 10 + i);
  }
  const std::vector<double> distances{2, 9, 1, 5};
  store().set_next_use(
      [&](PartId part) { return distances.at(static_cast<std::size_t>(part.value())); });
  EXPECT_FALSE(store().reserve_workspace(kFirst, kPart * 2));
  EXPECT_EQ(store().counters().write_backs, 2);
  EXPECT_EQ(finish_one().part, parts[1]);
  EXPECT_EQ(finish_one().part, parts[3]);
  EXPECT_TRUE(store().reserve_workspace(kFirst, kPart * 2));
  EXPECT_TRUE(there(parts[0]));
  EXPECT_TRUE(there(parts[2]));
}

TEST_F(ShardStoreStatesTest, ClearingADeviceDropsCleanCopiesAndWritesDirtyOnesBack) {
  const PartId clean = add(kPart, 1);
  const PartId dirty = add(kPart, 1);
  store().close_claim(claim_ready(kFirst, {clean}));
  write_on(kFirst, dirty, 2);
  EXPECT_FALSE(store().clear_device(kFirst));
  EXPECT_FALSE(there(clean));
  EXPECT_EQ(reserved(), kPart);
  finish_one();
  EXPECT_TRUE(store().clear_device(kFirst));
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_TRUE(host_holds(dirty, 2));
  EXPECT_EQ(downloaded(kFirst), kPart);
}

TEST_F(ShardStoreStatesTest, APartKnowsItsJobItsLabelAndItsSize) {
  const PartId part = add(Bytes(12345), 1);
  EXPECT_EQ(store().job_of(part), JobId(0));
  EXPECT_EQ(store().label(part), "part 0");
  EXPECT_EQ(store().bytes(part), Bytes(12345));
}

class EvictAtOnceTest : public ShardStoreFixture {
 protected:
  EvictAtOnceTest()
      : ShardStoreFixture({Bytes(256 << 10), Bytes(256 << 10)}, {.evict_at_once = true}) {}
  static constexpr Bytes kPart{64 << 10};
  static constexpr DeviceId kFirst{0};
  static constexpr DeviceId kSecond{1};
};

TEST_F(EvictAtOnceTest, ACleanCopyGoesWithItsLastClaim) {
  const PartId part = add(kPart, 1);
  const auto first = claim_ready(kFirst, {part});
  const auto second = claim_ready(kFirst, {part});
  store().close_claim(first);
  EXPECT_TRUE(device_holds(second, part, 1));
  store().close_claim(second);
  EXPECT_EQ(store().ledger(kFirst).reserved(), Bytes(0));
  EXPECT_EQ(store().counters().write_backs, 0);
}

TEST_F(EvictAtOnceTest, ADirtyCopyIsWrittenBackAndGoes) {
  const PartId part = add(kPart, 1);
  const auto claim = claim_ready(kFirst, {part});
  write(claim, part, 2);
  store().close_claim(claim);
  EXPECT_EQ(store().counters().write_backs, 1);
  finish_one();
  EXPECT_EQ(store().ledger(kFirst).reserved(), Bytes(0));
  EXPECT_TRUE(host_holds(part, 2));
}

TEST_F(EvictAtOnceTest, ADirtyCopyIsWrittenBackOnceNoOutdatedLoadReadsTheHome) {
  const PartId part = add(kPart, 1);
  hold_link(kSecond);
  const auto given_up = store().open_claim(kSecond, {part});
  store().advance(given_up);
  store().close_claim(given_up);
  const auto claim = claim_ready(kFirst, {part});
  write(claim, part, 2);
  store().close_claim(claim);
  EXPECT_EQ(store().counters().write_backs, 0);
  release_link(kSecond);
  finish_one();
  EXPECT_EQ(store().counters().write_backs, 1);  // nobody had to ask again
  finish_one();
  EXPECT_EQ(store().ledger(kFirst).reserved(), Bytes(0));
  EXPECT_TRUE(host_holds(part, 2));
}

TEST_F(EvictAtOnceTest, ALoadThatIsGivenUpGoesWhenItHasLanded) {
  const PartId part = add(kPart, 1);
  const auto claim = store().open_claim(kFirst, {part});
  store().advance(claim);
  store().close_claim(claim);
  finish_one();
  EXPECT_EQ(store().ledger(kFirst).reserved(), Bytes(0));
  EXPECT_TRUE(store().idle(part));
}

}  // namespace
}  // namespace hydra
