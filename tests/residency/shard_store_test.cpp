#include "hydra/residency/shard_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "hydra/core/inbox.h"
#include "hydra/device/virtual_device.h"

namespace hydra {
namespace {

constexpr Bytes kPart(64 << 10);

/// Two devices with links so slow that a transfer can be caught under way.
class ShardStoreTest : public ::testing::Test {
 protected:
  ShardStoreTest() {
    for (const char* name : {"fast", "slow"}) {
      VirtualDeviceOptions options;
      options.name = name;
      options.memory = Bytes(256 << 10);
      if (std::string(name) == "slow") options.link_latency = std::chrono::milliseconds(100);
      devices_.push_back(std::make_unique<VirtualDevice>(options));
    }
    store_ = std::make_unique<ShardStore>(
        std::vector<Device*>{devices_[0].get(), devices_[1].get()},
        [this](TransferDone done) { transfers_.push(done); }, ShardStore::Options{});
  }
  ~ShardStoreTest() override {
    for (auto& device : devices_) device->close();
  }

  PartId add(char content) {
    HostBuffer home = arena_.allocate(*host_.try_reserve(kPart));
    std::memset(home.data(), content, kPart.size());
    return store_->add({JobId(0), std::string("part ") + content, std::move(home)});
  }

  void finish_one() { store_->finish(*transfers_.pop()); }

  ShardStore::ClaimId claim_ready(DeviceId device, PartId part) {
    const auto claim = store_->open_claim(device, {part});
    while (store_->advance(claim) != ShardStore::ClaimState::kReady) finish_one();
    return claim;
  }

  static constexpr DeviceId kFast{0};
  static constexpr DeviceId kSlow{1};
  TierBudget host_{"host", Bytes(1 << 20)};
  HostArena arena_{Bytes(1 << 20)};
  Inbox<TransferDone> transfers_{64};
  std::vector<std::unique_ptr<VirtualDevice>> devices_;
  std::unique_ptr<ShardStore> store_;
};

TEST_F(ShardStoreTest, APartMayBeWrittenWhileAGivenUpLoadOfItIsUnderWayElsewhere) {
  const PartId part = add('a');
  const auto given_up = store_->open_claim(kSlow, {part});
  store_->advance(given_up);
  store_->close_claim(given_up);

  const auto claim = claim_ready(kFast, part);
  std::memset(store_->device_data(claim, part), 'b', kPart.size());
  store_->mark_written(claim, part);
  store_->close_claim(claim);

  // The home must not be overwritten while the slow load still reads it.
  EXPECT_FALSE(store_->settle(part));
  EXPECT_EQ(store_->counters().write_backs, 0);
  finish_one();  // the slow load, which is of an old version

  while (!store_->settle(part)) finish_one();
  EXPECT_EQ(std::to_integer<char>(store_->host_data(part)[0]), 'b');
  const auto again = claim_ready(kSlow, part);
  EXPECT_EQ(std::to_integer<char>(store_->device_data(again, part)[0]), 'b');
  store_->close_claim(again);
}

TEST_F(ShardStoreTest, AClaimOnAnOutdatedLoadWaitsForTheNewVersion) {
  const PartId part = add('a');
  const auto given_up = store_->open_claim(kSlow, {part});
  store_->advance(given_up);
  store_->close_claim(given_up);
  const auto claim = claim_ready(kFast, part);
  std::memset(store_->device_data(claim, part), 'b', kPart.size());
  store_->mark_written(claim, part);
  store_->close_claim(claim);
  const auto wanted = claim_ready(kSlow, part);
  EXPECT_EQ(std::to_integer<char>(store_->device_data(wanted, part)[0]), 'b');
  store_->close_claim(wanted);
}

TEST_F(ShardStoreTest, CleanCopiesAreDroppedForRoomAndNeverWrittenBack) {
  std::vector<PartId> parts;
  for (char c = 'a'; c < 'i'; ++c) parts.push_back(add(c));
  for (const PartId part : parts) store_->close_claim(claim_ready(kFast, part));
  EXPECT_EQ(store_->counters().write_backs, 0);
  EXPECT_EQ(devices_[0]->stats().downloaded, Bytes(0));
  EXPECT_EQ(store_->counters().evictions, 4);
  EXPECT_LE(store_->ledger(kFast).peak(), devices_[0]->budget());
}

TEST_F(ShardStoreTest, TheCopyThatIsNeededLastIsLostFirst) {
  std::vector<PartId> parts;
  for (char c = 'a'; c < 'e'; ++c) parts.push_back(add(c));
  for (const PartId part : parts) store_->close_claim(claim_ready(kFast, part));
  store_->set_next_use([&](PartId part) { return part == parts[2] ? 9.0 : 1.0; });
  store_->close_claim(claim_ready(kFast, add('z')));
  EXPECT_EQ(store_->missing(std::vector{parts[2]}, kFast), kPart);
  EXPECT_EQ(store_->missing(std::vector{parts[0], parts[1], parts[3]}, kFast), Bytes(0));
}

TEST_F(ShardStoreTest, DirtyCopiesReachTheirHomesBeforeTheirRoomIsReused) {
  std::vector<PartId> parts;
  for (char c = 'a'; c < 'g'; ++c) {
    parts.push_back(add(c));
    const auto claim = claim_ready(kFast, parts.back());
    std::memset(store_->device_data(claim, parts.back()), c + 1, kPart.size());
    store_->mark_written(claim, parts.back());
    store_->close_claim(claim);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    while (!store_->settle(parts[i])) finish_one();
    EXPECT_EQ(std::to_integer<char>(store_->host_data(parts[i])[0]), static_cast<char>('b' + i));
  }
  EXPECT_EQ(devices_[0]->stats().downloaded, kPart * 6);
}

TEST_F(ShardStoreTest, AFailedLoadLeavesNothingAndIsTriedAgain) {
  const PartId part = add('a');
  devices_[0]->fail_copy_after(0);
  const auto claim = store_->open_claim(kFast, {part});
  store_->advance(claim);
  finish_one();
  EXPECT_EQ(store_->ledger(kFast).reserved(), Bytes(0));
  while (store_->advance(claim) != ShardStore::ClaimState::kReady) finish_one();
  EXPECT_EQ(std::to_integer<char>(store_->device_data(claim, part)[0]), 'a');
  store_->close_claim(claim);
}

TEST_F(ShardStoreTest, AWriteByTheHostInvalidatesEveryCopy) {
  const PartId part = add('a');
  store_->close_claim(claim_ready(kFast, part));
  std::memset(store_->begin_host_write(part), 'q', kPart.size());
  EXPECT_EQ(store_->missing(std::vector{part}, kFast), kPart);
  store_->end_host_write(part);
  const auto claim = claim_ready(kFast, part);
  EXPECT_EQ(std::to_integer<char>(store_->device_data(claim, part)[0]), 'q');
  store_->close_claim(claim);
  store_->remove(part);
  EXPECT_EQ(store_->ledger(kFast).reserved(), Bytes(0));
  EXPECT_EQ(host_.reserved(), Bytes(0));
}

}  // namespace
}  // namespace hydra
