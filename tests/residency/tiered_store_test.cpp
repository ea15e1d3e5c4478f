// Parts whose home is on storage, seen from claims: what waits for what, and what is moved.

#include "tiered_store.h"

#include <gtest/gtest.h>

#include "hydra/core/error.h"

namespace hydra {
namespace {

using ClaimState = ShardStore::ClaimState;

constexpr Bytes kPart{64 << 10};
constexpr DeviceId kFirst{0};
constexpr DeviceId kSecond{1};

/// Two devices with room for two parts each, and a host with room for three.
class TieredStoreTest : public ::testing::Test {
 protected:
  explicit TieredStoreTest(bool evict_at_once = false)
      : store_({.devices = {kPart * 2, kPart * 2},
                .host = kPart * 3,
                .store = {.evict_at_once = evict_at_once}}) {}

  ShardStore::Counters counters() { return store_->counters(); }
  Bytes host_reserved() { return store_.tier().host().reserved(); }
  Bytes reserved(DeviceId device = kFirst) { return store_->ledger(device).reserved(); }
  HostClaimId room(Bytes bytes) {
    const HostClaimId claim = store_->open_host_claim({}, bytes);
    store_.advance_until_ready(claim);
    return claim;
  }
  /// Adds a part that is on its extent alone.
  PartId add_absent(std::uint64_t content) {
    const PartId part = store_.add(kPart, content);
    store_->close_host_claim(room(kPart * 3));
    return part;
  }
  void write_on(DeviceId device, PartId part, std::uint64_t content) {
    const auto claim = store_.claim_ready(device, {part});
    store_.write(claim, part, content);
    store_->close_claim(claim);
  }

  TieredStore store_;
};

TEST_F(TieredStoreTest, NothingIsReadOrWrittenWhileHostMemorySuffices) {
  std::vector<PartId> parts;
  for (std::uint64_t i = 0; i < 3; ++i) parts.push_back(store_.add(kPart, i));
  for (std::uint64_t round = 1; round < 4; ++round) {
    for (std::size_t i = 0; i < 3; ++i) {
      const auto claim = store_.claim_ready(kFirst, {parts[i]});
      EXPECT_TRUE(store_.holds(claim, parts[i], (round - 1) * 100 + i));
      store_->close_claim(claim);
      const HostClaimId host = store_.host_claim_ready({parts[i]});
      store_.write(host, parts[i], round * 100 + i);
      store_->close_host_claim(host);
    }
  }
  EXPECT_EQ(counters().storage_writes, 0);
  EXPECT_EQ(counters().storage_reads, 0);
  EXPECT_EQ(counters().host_evictions, 0);
  EXPECT_EQ(store_.tier().switches().transfers, 0);
}

TEST_F(TieredStoreTest, ALoadFetchesFirstAndHoldsItsRoomOnTheDeviceMeanwhile) {
  const PartId part = add_absent(1);
  const auto claim = store_->open_claim(kFirst, {part});
  EXPECT_EQ(store_->advance(claim), ClaimState::kWaiting);
  EXPECT_EQ(reserved(), kPart);
  EXPECT_EQ(host_reserved(), kPart);
  EXPECT_EQ(store_->missing(std::vector{part}, kFirst), Bytes(0));  // on its way
  EXPECT_EQ(counters().storage_reads, 1);
  EXPECT_EQ(counters().loads, 0);
  store_.finish_one();
  EXPECT_EQ(counters().loads, 1);  // the upload begins by itself
  store_.finish_one();
  EXPECT_EQ(store_->advance(claim), ClaimState::kReady);
  EXPECT_TRUE(store_.holds(claim, part, 1));
  store_->close_claim(claim);
}

TEST_F(TieredStoreTest, TheHostCopyOfWhatIsOnADeviceIsACacheLikeAnyOther) {
  const PartId part = add_absent(1);
  const auto claim = store_.claim_ready(kFirst, {part});
  EXPECT_EQ(host_reserved(), kPart);
  store_->close_host_claim(room(kPart * 3));
  EXPECT_EQ(host_reserved(), Bytes(0));
  EXPECT_TRUE(store_.holds(claim, part, 1));
  store_->close_claim(claim);
}

TEST_F(TieredStoreTest, ALoadThatIsGivenUpWhileFetchingGivesItsRoomBackAtOnce) {
  const PartId part = add_absent(1);
  const auto claim = store_->open_claim(kFirst, {part});
  store_->advance(claim);
  store_->close_claim(claim);
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_FALSE(store_->idle(part));  // the drive still writes to its memory
  store_.finish_all();
  EXPECT_TRUE(store_->idle(part));
  EXPECT_EQ(counters().loads, 0);
  store_->close_claim(store_.claim_ready(kFirst, {part}));
  EXPECT_EQ(counters().storage_reads, 1);  // it had become a host copy
}

TEST_F(TieredStoreTest, ALoadThatWaitsForHostRoomHoldsNoneOfIt) {
  const PartId part = add_absent(1);
  const HostClaimId holder = room(kPart * 3);
  const auto claim = store_->open_claim(kFirst, {part});
  EXPECT_EQ(store_->advance(claim), ClaimState::kWaiting);
  EXPECT_EQ(reserved(), kPart);
  EXPECT_EQ(store_.under_way(), 0);
  store_->close_host_claim(holder);
  EXPECT_EQ(counters().storage_reads, 1);  // by itself
  store_.advance_until_ready(claim);
  EXPECT_TRUE(store_.holds(claim, part, 1));
}

TEST_F(TieredStoreTest, AClaimWithoutRoomOnTheDevicePrefetchesToTheHost) {
  const PartId part = add_absent(1);
  auto workspace = store_->reserve_workspace(kFirst, kPart * 2);
  const auto claim = store_->open_claim(kFirst, {part});
  EXPECT_EQ(store_->advance(claim), ClaimState::kWaiting);
  EXPECT_EQ(counters().storage_reads, 1);
  store_.finish_all();
  const HostClaimId all = room(kPart * 3);  // what is prefetched holds nothing
  store_->close_host_claim(all);
  workspace->release();
  store_.advance_until_ready(claim);
  EXPECT_TRUE(store_.holds(claim, part, 1));
  EXPECT_EQ(counters().storage_reads, 2);
}

TEST_F(TieredStoreTest, WhatADeviceHasWrittenTakesNoHostRoomUntilItIsWrittenBack) {
  const PartId part = store_.add(kPart, 1);
  write_on(kFirst, part, 2);
  EXPECT_EQ(host_reserved(), Bytes(0));
  EXPECT_EQ(counters().storage_writes, 0);
  EXPECT_FALSE(store_->settle(part));
  EXPECT_EQ(host_reserved(), kPart);
  EXPECT_EQ(counters().write_backs, 1);
  store_.finish_one();
  EXPECT_TRUE(store_->settle(part));
  const HostClaimId claim = store_.host_claim_ready({part});
  EXPECT_TRUE(store_.holds(claim, part, 2));
  store_->close_host_claim(claim);
  EXPECT_EQ(counters().storage_reads, 0);
}

TEST_F(TieredStoreTest, AWriteBackWaitsForHostRoomAndStartsByItself) {
  const PartId part = store_.add(kPart, 1);
  write_on(kFirst, part, 2);
  const HostClaimId holder = room(kPart * 3);
  EXPECT_FALSE(store_->reserve_workspace(kFirst, kPart * 2));
  EXPECT_FALSE(store_->reserve_workspace(kFirst, kPart * 2));
  EXPECT_FALSE(store_->clear_device(kFirst));
  EXPECT_FALSE(store_->settle(part));
  EXPECT_EQ(counters().write_backs, 0);
  EXPECT_TRUE(store_->idle(part));
  store_->close_host_claim(holder);
  EXPECT_EQ(counters().write_backs, 1);
  EXPECT_FALSE(store_->idle(part));
  store_.finish_one();
  EXPECT_TRUE(store_->reserve_workspace(kFirst, kPart * 2));
}

TEST_F(TieredStoreTest, AWriteBackThatWaitsIsGivenUpWhenItsCopyIsClaimedAgain) {
  const PartId part = store_.add(kPart, 1);
  write_on(kFirst, part, 2);
  const HostClaimId holder = room(kPart * 3);
  store_->settle(part);
  const auto claim = store_->open_claim(kFirst, {part});
  EXPECT_EQ(store_->advance(claim), ClaimState::kReady);
  store_->close_host_claim(holder);
  EXPECT_EQ(counters().write_backs, 0);
  EXPECT_EQ(host_reserved(), Bytes(0));
  store_.write(claim, part, 3);
  store_->close_claim(claim);
  const HostClaimId reader = store_.host_claim_ready({part});
  EXPECT_TRUE(store_.holds(reader, part, 3));
  store_->close_host_claim(reader);
}

TEST_F(TieredStoreTest, AWriteBackThatWaitsGoesWithItsPart) {
  const PartId part = store_.add(kPart, 1);
  write_on(kFirst, part, 2);
  const HostClaimId holder = room(kPart * 3);
  store_->settle(part);
  store_->remove(part);
  store_->close_host_claim(holder);
  store_.expect_balance();
}

TEST_F(TieredStoreTest, AFailedWriteBackToTheHostLosesNothing) {
  const PartId part = store_.add(kPart, 1);
  write_on(kFirst, part, 2);
  store_.device(0).fail_copy_after(0);
  EXPECT_FALSE(store_->settle(part));
  EXPECT_TRUE(store_.finish_one().has_value());
  EXPECT_EQ(host_reserved(), Bytes(0));
  const HostClaimId claim = store_.host_claim_ready({part});
  EXPECT_TRUE(store_.holds(claim, part, 2));
  store_->close_host_claim(claim);
}

TEST_F(TieredStoreTest, ADirtyPartGoesByTheHostFromDeviceToDevice) {
  const PartId part = add_absent(1);
  write_on(kFirst, part, 2);
  const auto claim = store_.claim_ready(kSecond, {part});
  EXPECT_TRUE(store_.holds(claim, part, 2));
  store_->close_claim(claim);
  EXPECT_EQ(counters().storage_reads, 1);  // the first one: what the drive has now is old
}

// Host claims.

TEST_F(TieredStoreTest, AHostClaimBringsAllItsPartsAndLetsThemGoDirty) {
  const PartId a = add_absent(1);
  const PartId b = add_absent(2);
  const HostClaimId claim = store_->open_host_claim({a, b, a});
  EXPECT_EQ(store_->advance(claim), ClaimState::kWaiting);
  EXPECT_THROW(store_->host_data(claim, a), InternalError);
  EXPECT_EQ(counters().storage_reads, 4 - 2);
  store_.advance_until_ready(claim);
  EXPECT_TRUE(store_.holds(claim, a, 1));
  store_.write(claim, b, 5);
  EXPECT_FALSE(store_->idle(a));
  store_->close_host_claim(claim);
  EXPECT_TRUE(store_->idle(a));
  const std::int64_t before = counters().storage_writes;
  store_->close_host_claim(room(kPart * 3));
  EXPECT_EQ(counters().storage_writes, before + 1);  // b alone
  const HostClaimId reader = store_.host_claim_ready({a, b});
  EXPECT_TRUE(store_.holds(reader, a, 1));
  EXPECT_TRUE(store_.holds(reader, b, 5));
  store_->close_host_claim(reader);
}

TEST_F(TieredStoreTest, AHostClaimWaitsWithoutHoldingWhileItsPartIsClaimedOnADevice) {
  const PartId a = add_absent(1);
  const PartId b = add_absent(2);
  const auto unit = store_.claim_ready(kFirst, {a});
  store_->close_host_claim(room(kPart * 3));
  const HostClaimId claim = store_->open_host_claim({a, b});
  EXPECT_EQ(store_->advance(claim), ClaimState::kWaiting);
  EXPECT_EQ(host_reserved(), Bytes(0));
  store_->close_claim(unit);
  store_.advance_until_ready(claim);
  store_->close_host_claim(claim);
}

TEST_F(TieredStoreTest, AHostClaimTakesWhatADeviceHasWritten) {
  const PartId part = add_absent(1);
  write_on(kFirst, part, 2);
  const HostClaimId claim = store_.host_claim_ready({part});
  EXPECT_TRUE(store_.holds(claim, part, 2));
  store_->close_host_claim(claim);
  EXPECT_EQ(counters().write_backs, 1);
}

TEST_F(TieredStoreTest, OneWriteBackServesAHostClaimThatWaitsBehindIt) {
  const PartId part = add_absent(1);
  write_on(kFirst, part, 2);
  const HostClaimId holder = room(kPart * 3);
  store_->settle(part);
  const HostClaimId claim = store_->open_host_claim({part});
  EXPECT_EQ(store_->advance(claim), ClaimState::kWaiting);
  store_->close_host_claim(holder);
  store_.advance_until_ready(claim);
  EXPECT_TRUE(store_.holds(claim, part, 2));
  EXPECT_EQ(counters().write_backs, 1);
  store_->close_host_claim(claim);
}

TEST_F(TieredStoreTest, LoadsWaitForAHostClaimAndReadersKeepCopiesOnDevices) {
  const PartId part = store_.add(kPart, 1);
  store_->close_claim(store_.claim_ready(kFirst, {part}));
  const HostClaimId reader = store_.host_claim_ready({part});
  const auto claim = store_->open_claim(kFirst, {part});
  EXPECT_EQ(store_->advance(claim), ClaimState::kWaiting);  // it may be about to be written
  store_->close_host_claim(reader);
  EXPECT_EQ(store_->advance(claim), ClaimState::kReady);
  EXPECT_EQ(counters().loads, 1);
  store_->close_claim(claim);
  const HostClaimId writer = store_.host_claim_ready({part});
  store_.write(writer, part, 2);
  EXPECT_EQ(store_->missing(std::vector{part}, kFirst), kPart);
  store_->close_host_claim(writer);
  const auto again = store_.claim_ready(kFirst, {part});
  EXPECT_TRUE(store_.holds(again, part, 2));
  store_->close_claim(again);
}

TEST_F(TieredStoreTest, HostClaimsOfOnePartTakeTurns) {
  const PartId part = store_.add(kPart, 1);
  const HostClaimId first = store_.host_claim_ready({part});
  const HostClaimId second = store_->open_host_claim({part});
  EXPECT_EQ(store_->advance(second), ClaimState::kWaiting);
  store_.write(first, part, 2);
  store_->close_host_claim(first);
  EXPECT_EQ(store_->advance(second), ClaimState::kReady);
  EXPECT_TRUE(store_.holds(second, part, 2));
  store_->close_host_claim(second);
}

TEST_F(TieredStoreTest, AHostClaimServesPartsThatLiveInHostMemoryToo) {
  const PartId stored = add_absent(1);
  TierBudget budget("host", kPart);
  HostArena arena(kPart);
  HostBuffer home = arena.allocate(budget.try_reserve(kPart).value());
  TieredStore::fill(home.data(), kPart, 7);
  const PartId resident = store_->add({JobId(0), "resident", std::move(home)});
  write_on(kSecond, resident, 8);
  const HostClaimId claim = store_->open_host_claim({stored, resident});
  EXPECT_EQ(store_->advance(claim), ClaimState::kWaiting);
  store_.advance_until_ready(claim);
  EXPECT_TRUE(store_.holds(claim, resident, 8));
  EXPECT_TRUE(store_.holds(claim, stored, 1));
  store_.write(claim, resident, 9);
  store_->close_host_claim(claim);
  EXPECT_THROW(store_->begin_host_write(stored), InternalError);
  EXPECT_TRUE(TieredStore::is(store_->begin_host_write(resident), kPart, 9));
  store_->end_host_write(resident);
  store_->remove(resident);
}

TEST_F(TieredStoreTest, WhatTheHostCanNeverHoldIsRefused) {
  const PartId part = add_absent(1);
  EXPECT_THROW(store_->open_host_claim({part}, kPart * 2 + Bytes(1)), DoesNotFit);
  store_->close_host_claim(store_->open_host_claim({part}, kPart * 2));
}

TEST_F(TieredStoreTest, AHostClaimMayBeClosedInAnyState) {
  const PartId a = add_absent(1);
  const PartId b = add_absent(2);
  const auto close_now = [&](int advances) {
    const HostClaimId claim = store_->open_host_claim({a, b});
    for (int i = 0; i < advances; ++i) store_->advance(claim);
    store_->close_host_claim(claim);
  };
  close_now(0);
  const HostClaimId holder = room(kPart * 2);
  close_now(1);
  store_->close_host_claim(holder);
  close_now(1);
  store_.finish_all();
  store_->remove(a);
  store_->remove(b);
  store_.expect_balance();
}

TEST_F(TieredStoreTest, TheBytesOfAPartCanBeTakenFromAHostClaim) {
  const PartId part = add_absent(1);
  const PartId other = add_absent(2);
  const HostClaimId claim = store_.host_claim_ready({part, other});
  {
    const HostBuffer buffer = store_->take_home(claim, part);
    EXPECT_TRUE(TieredStore::is(buffer.data(), kPart, 1));
    EXPECT_TRUE(store_.holds(claim, other, 2));
    store_->close_host_claim(claim);
    EXPECT_THROW(store_->take_home(other), InternalError);
    store_->remove(other);
    EXPECT_EQ(host_reserved(), kPart);
  }
  store_.expect_balance();
}

TEST_F(TieredStoreTest, PrefetchedPartsAreThereWhenTheyAreClaimed) {
  const PartId a = add_absent(1);
  const PartId b = add_absent(2);
  store_->prefetch(std::vector{a, b});
  store_.finish_all();
  const HostClaimId claim = store_->open_host_claim({a, b});
  EXPECT_EQ(store_->advance(claim), ClaimState::kReady);
  store_->close_host_claim(claim);
}

TEST_F(TieredStoreTest, HostAndDevicesMayBeToldDifferentNextUses) {
  const PartId first = add_absent(1);
  const PartId second = add_absent(2);
  store_->set_next_use([&](PartId part) { return part == first ? 9.0 : 1.0; });
  store_->set_next_host_use([&](PartId part) { return part == first ? 1.0 : 9.0; });
  for (const PartId part : {first, second}) store_->close_claim(store_.claim_ready(kFirst, {part}));
  const HostClaimId claim = room(kPart * 2);
  EXPECT_TRUE(store_->reserve_workspace(kFirst, kPart));
  EXPECT_EQ(store_->missing(std::vector{first}, kFirst), kPart);
  EXPECT_EQ(store_->missing(std::vector{second}, kFirst), Bytes(0));
  store_->close_host_claim(claim);
  const HostClaimId still = store_->open_host_claim({first});
  EXPECT_EQ(store_->advance(still), ClaimState::kReady);
  store_->close_host_claim(still);
}

// Failures.

TEST_F(TieredStoreTest, AFailedReadReachesTheClaimThatAsksAgain) {
  const PartId part = add_absent(1);
  store_.tier().switches().fail_reads = true;
  const auto claim = store_->open_claim(kFirst, {part});
  store_->advance(claim);
  const auto failed = store_.finish_one();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->part, part);
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_EQ(host_reserved(), Bytes(0));
  EXPECT_EQ(store_.under_way(), 0);  // until it is advanced
  store_.tier().switches().fail_reads = false;
  store_.advance_until_ready(claim);
  EXPECT_TRUE(store_.holds(claim, part, 1));
  store_->close_claim(claim);
}

TEST_F(TieredStoreTest, AFailedReadOfOnePartOfAHostClaimGivesAllBack) {
  const PartId a = add_absent(1);
  const PartId b = add_absent(2);
  const HostClaimId claim = store_->open_host_claim({a, b}, kPart);
  store_.tier().switches().fail_after = 0;
  store_->advance(claim);
  std::optional<TransferDone> failed;
  while (store_.under_way() > 0) {
    if (auto each = store_.finish_one()) failed = each;
  }
  ASSERT_TRUE(failed.has_value());
  const HostClaimId all = room(kPart * 3);
  store_->close_host_claim(all);
  store_.advance_until_ready(claim);
  EXPECT_TRUE(store_.holds(claim, a, 1));
  EXPECT_TRUE(store_.holds(claim, b, 2));
  store_->close_host_claim(claim);
}

TEST_F(TieredStoreTest, AFailedWriteHitsItsOwnJobAndNobodyElsesBytes) {
  const PartId mine = store_.add(kPart, 1, JobId(1));
  const PartId other = store_.add(kPart, 2, JobId(2));
  store_->set_next_use([&](PartId part) { return part == mine ? 9.0 : 1.0; });
  store_.tier().switches().fail_after = 0;
  store_.tier().switches().fail_count = 8;  // all blocks of both tries
  const HostClaimId claim = store_->open_host_claim({}, kPart * 2);
  store_->advance(claim);
  std::optional<TransferDone> failed;
  while (!failed) failed = store_.finish_one();
  EXPECT_EQ(store_->job_of(failed->part), JobId(1));
  EXPECT_TRUE(failed->retried);
  store_.advance_until_ready(claim);  // out of the other one, in its stead
  store_->close_host_claim(claim);
  for (const auto& [part, content] : {std::pair(mine, 1), std::pair(other, 2)}) {
    const HostClaimId reader = store_.host_claim_ready({part});
    EXPECT_TRUE(store_.holds(reader, part, static_cast<std::uint64_t>(content)));
    store_->close_host_claim(reader);
  }
}

// Evicting at once.

class TieredStoreEvictingTest : public TieredStoreTest {
 protected:
  TieredStoreEvictingTest() : TieredStoreTest(true) {}
};

TEST_F(TieredStoreEvictingTest, EverythingGoesToItsExtentAsSoonAsNothingHoldsIt) {
  const PartId part = store_.add(kPart, 1);
  store_.finish_all();
  EXPECT_EQ(host_reserved(), Bytes(0));
  write_on(kFirst, part, 2);
  store_.finish_all();
  EXPECT_EQ(reserved(), Bytes(0));
  EXPECT_EQ(host_reserved(), Bytes(0));
  const HostClaimId claim = store_.host_claim_ready({part});
  EXPECT_TRUE(store_.holds(claim, part, 2));
  store_.write(claim, part, 3);
  store_->close_host_claim(claim);
  store_.finish_all();
  EXPECT_EQ(host_reserved(), Bytes(0));
  EXPECT_EQ(counters().storage_writes, 3);
  const auto unit = store_.claim_ready(kSecond, {part});
  EXPECT_TRUE(store_.holds(unit, part, 3));
  store_->close_claim(unit);
}

}  // namespace
}  // namespace hydra
