#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/inbox.h"
#include "hydra/core/random.h"
#include "hydra/device/virtual_device.h"
#include "hydra/residency/shard_store.h"

namespace hydra {

/// Virtual devices and a store, whose messages the test takes in one at a time.
class ShardStoreFixture : public ::testing::Test {
 protected:
  explicit ShardStoreFixture(const std::vector<Bytes>& budgets, ShardStore::Options options = {},
                             VirtualDeviceOptions::Faults faults = {}) {
    std::vector<Device*> borrowed;
    for (std::size_t i = 0; i < budgets.size(); ++i) {
      VirtualDeviceOptions device;
      device.name = "cpu" + std::to_string(i);
      device.memory = budgets[i];
      device.faults = faults;
      devices_.push_back(std::make_unique<VirtualDevice>(device));
      borrowed.push_back(devices_.back().get());
    }
    links_.resize(budgets.size());
    store_ = std::make_unique<ShardStore>(
        std::move(borrowed), [this](TransferDone done) { transfers_.push(std::move(done)); },
        options);
  }

  ~ShardStoreFixture() override {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      release_link(DeviceId(static_cast<std::int64_t>(i)));
    }
    for (auto& device : devices_) device->close();  // transfers under way use the store's memory
  }

  ShardStore& store() { return *store_; }
  TierBudget& host() { return host_; }
  VirtualDevice& device(DeviceId id) { return *devices_.at(static_cast<std::size_t>(id.value())); }
  Bytes uploaded(DeviceId id) { return device(id).stats().uploaded; }
  Bytes downloaded(DeviceId id) { return device(id).stats().downloaded; }

  /// Holds back the uploads of a device until the link is released.
  void hold_link(DeviceId id) {
    auto& gate = links_.at(static_cast<std::size_t>(id.value()));
    gate = Event::pending();
    device(id).upload().wait(*gate);
  }
  void release_link(DeviceId id) {
    auto& gate = links_.at(static_cast<std::size_t>(id.value()));
    if (gate) gate->fire(nullptr);
    gate.reset();
  }

  PartId add(Bytes size, std::uint64_t content) {
    HostBuffer home = arena_.allocate(host_.try_reserve(size).value());
    fill(home.data(), size, content);
    return store_->add({JobId(0), "part " + std::to_string(parts_++), std::move(home)});
  }

  // Content is a number that is spread over all bytes.

  static void fill(std::byte* data, Bytes size, std::uint64_t content) {
    SplitMix64 random(content);
    std::int64_t at = 0;
    for (; at + 8 <= size.count(); at += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(data + at, &word, 8);
    }
    for (; at < size.count(); ++at) data[at] = static_cast<std::byte>(content);
  }
  static bool holds(const std::byte* data, Bytes size, std::uint64_t content) {
    std::vector<std::byte> expected(size.size());
    fill(expected.data(), size, content);
    return std::memcmp(expected.data(), data, size.size()) == 0;
  }
  bool host_holds(PartId part, std::uint64_t content) {
    return holds(store_->host_data(part), store_->bytes(part), content);
  }
  bool device_holds(ShardStore::ClaimId claim, PartId part, std::uint64_t content) {
    return holds(store_->device_data(claim, part), store_->bytes(part), content);
  }
  void write(ShardStore::ClaimId claim, PartId part, std::uint64_t content) {
    fill(store_->device_data(claim, part), store_->bytes(part), content);
    store_->mark_written(claim, part);
  }

  // Messages.

  TransferDone finish_one() {
    TransferDone done = transfers_.pop().value();
    store_->finish(done);
    return done;
  }
  /// Takes in one message if there is one.
  bool try_finish_one() {
    auto done = transfers_.try_pop();
    if (!done) return false;
    store_->finish(*done);
    return true;
  }
  /// Transfers that have been started and not taken in.
  std::int64_t transfers_under_way() {
    std::int64_t waiting = 0;
    for (auto& device : devices_) {
      device->upload().record().wait();
      device->download().record().wait();
    }
    std::vector<TransferDone> taken;
    while (auto done = transfers_.try_pop()) taken.push_back(std::move(*done));
    waiting = static_cast<std::int64_t>(taken.size());
    for (TransferDone& done : taken) transfers_.push(std::move(done));
    return waiting;
  }

  void advance_until_ready(ShardStore::ClaimId claim) {
    while (store_->advance(claim) != ShardStore::ClaimState::kReady) finish_one();
  }
  ShardStore::ClaimId claim_ready(DeviceId device, std::vector<PartId> parts) {
    const auto claim = store_->open_claim(device, std::move(parts));
    advance_until_ready(claim);
    return claim;
  }
  void settle(PartId part) {
    while (!store_->settle(part)) finish_one();
  }

 private:
  TierBudget host_{"host", Bytes(8 << 20)};
  HostArena arena_{Bytes(8 << 20)};
  Inbox<TransferDone> transfers_{1 << 12};
  std::vector<std::unique_ptr<VirtualDevice>> devices_;
  std::vector<std::optional<Event>> links_;
  std::unique_ptr<ShardStore> store_;
  std::int64_t parts_ = 0;
};

}  // namespace hydra
