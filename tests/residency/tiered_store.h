#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "hydra/core/random.h"
#include "hydra/device/virtual_device.h"
#include "storage_tier.h"

namespace hydra {

struct TieredOptions {
  std::vector<Bytes> devices;
  Bytes host;
  Bytes drive{4 << 20};
  ShardStore::Options store{};
  VirtualDeviceOptions::Faults faults{};
  std::optional<std::uint64_t> disorder_seed{};  ///< completions of the drive
};

/// A shard store over three tiers, and its owner's side of all completions.
class TieredStore {
 public:
  explicit TieredStore(const TieredOptions& options)
      : tier_(options.host, options.drive, inbox_, options.disorder_seed) {
    std::vector<Device*> borrowed;
    for (std::size_t i = 0; i < options.devices.size(); ++i) {
      VirtualDeviceOptions device;
      device.name = "cpu" + std::to_string(i);
      device.memory = options.devices[i];
      device.faults = options.faults;
      devices_.push_back(std::make_unique<VirtualDevice>(device));
      borrowed.push_back(devices_.back().get());
    }
    store_ = std::make_unique<ShardStore>(
        std::move(borrowed), [this](TransferDone done) { inbox_.push(std::move(done)); },
        options.store, tier_.storage());
  }
  ~TieredStore() {
    for (auto& device : devices_) device->close();
    tier_.extents().close();
  }

  ShardStore* operator->() { return store_.get(); }
  StorageTier<std::variant<TransferDone, ExtentStore::Done>>& tier() { return tier_; }
  VirtualDevice& device(std::size_t i) { return *devices_.at(i); }
  std::size_t device_count() const { return devices_.size(); }

  /// Transfers that have been started and not taken in.
  std::int64_t under_way() const {
    const ShardStore::Counters now = store_->counters();
    return now.loads + now.write_backs + now.storage_reads + now.storage_writes - taken_in_;
  }
  /// Takes in the oldest completion, or one of those that are there; returns what failed.
  std::optional<TransferDone> finish_one() { return take_in(inbox_.pop().value()); }
  std::optional<TransferDone> finish_any(SplitMix64& random) {
    while (auto more = inbox_.try_pop()) arrived_.push_back(std::move(*more));
    if (arrived_.empty()) arrived_.push_back(inbox_.pop().value());
    const std::size_t i = random.below(arrived_.size());
    std::swap(arrived_[i], arrived_.back());
    auto message = std::move(arrived_.back());
    arrived_.pop_back();
    return take_in(std::move(message));
  }
  void finish_all() {
    while (under_way() > 0) finish_one();
  }

  /// Adds a part on storage, whose first host copy gets its room like everything else.
  PartId add(Bytes size, std::uint64_t content, JobId job = JobId(0)) {
    const HostClaimId claim = store_->open_host_claim({}, size);
    while (store_->advance(claim) != ShardStore::ClaimState::kReady) finish_one();
    HostBuffer buffer = tier_.storage().arena->allocate(store_->take_room(claim));
    store_->close_host_claim(claim);
    fill(buffer.data(), size, content);
    const std::string label =
        "job " + std::to_string(job.value()) + " part " + std::to_string(parts_++);
    return store_->add({job, label, std::move(buffer), true});
  }
  void advance_until_ready(ShardStore::ClaimId claim) {
    while (store_->advance(claim) != ShardStore::ClaimState::kReady) finish_one();
  }
  void advance_until_ready(HostClaimId claim) {
    while (store_->advance(claim) != ShardStore::ClaimState::kReady) finish_one();
  }
  ShardStore::ClaimId claim_ready(DeviceId device, std::vector<PartId> parts) {
    const auto claim = store_->open_claim(device, std::move(parts));
    advance_until_ready(claim);
    return claim;
  }
  HostClaimId host_claim_ready(std::vector<PartId> parts) {
    const HostClaimId claim = store_->open_host_claim(std::move(parts));
    advance_until_ready(claim);
    return claim;
  }
  void write(ShardStore::ClaimId claim, PartId part, std::uint64_t content) {
    fill(store_->device_data(claim, part), store_->bytes(part), content);
    store_->mark_written(claim, part);
  }
  void write(HostClaimId claim, PartId part, std::uint64_t content) {
    store_->mark_host_written(claim, part);
    fill(store_->host_data(claim, part), store_->bytes(part), content);
  }
  bool holds(ShardStore::ClaimId claim, PartId part, std::uint64_t content) {
    return is(store_->device_data(claim, part), store_->bytes(part), content);
  }
  bool holds(HostClaimId claim, PartId part, std::uint64_t content) {
    return is(store_->host_data(claim, part), store_->bytes(part), content);
  }

  /// Content is a number that is spread over all bytes.
  static void fill(std::byte* data, Bytes size, std::uint64_t content) {
    SplitMix64 random(content);
    std::int64_t at = 0;
    for (; at + 8 <= size.count(); at += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(data + at, &word, 8);
    }
    for (; at < size.count(); ++at) data[at] = static_cast<std::byte>(content);
  }
  static bool is(const std::byte* data, Bytes size, std::uint64_t content) {
    std::vector<std::byte> expected(size.size());
    fill(expected.data(), size, content);
    return std::memcmp(expected.data(), data, size.size()) == 0;
  }

  /// Nothing is left: all parts have been removed and everything has been taken in.
  void expect_balance() {
    EXPECT_EQ(under_way(), 0);
    EXPECT_EQ(tier_.host().reserved(), Bytes(0));
    EXPECT_EQ(tier_.extents().used(), Bytes(0));
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      EXPECT_EQ(store_->ledger(DeviceId(static_cast<std::int64_t>(d))).reserved(), Bytes(0));
      EXPECT_EQ(devices_[d]->stats().in_use, Bytes(0));
    }
  }

 private:
  using Message = std::variant<TransferDone, ExtentStore::Done>;

  std::optional<TransferDone> take_in(Message message) {
    if (const auto* done = std::get_if<ExtentStore::Done>(&message)) {
      ++taken_in_;
      return store_->finish(*done);
    }
    const auto& done = std::get<TransferDone>(message);
    if (done.device.valid()) ++taken_in_;
    store_->finish(done);
    return done.failure == nullptr ? std::nullopt : std::optional(done);
  }

  Inbox<Message> inbox_{1 << 14};
  std::vector<Message> arrived_;
  std::int64_t taken_in_ = 0;
  std::int64_t parts_ = 0;
  StorageTier<Message> tier_;
  std::vector<std::unique_ptr<VirtualDevice>> devices_;
  std::unique_ptr<ShardStore> store_;
};

}  // namespace hydra
