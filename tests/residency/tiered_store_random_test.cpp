// Random claims and updates over three tiers against a model that knows the last write of every
// part; clients that claim, write and let go until all are done, which nothing may hold up; and
// faults planted at every transfer.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "hydra/core/error.h"
#include "hydra/testing/sweep.h"
#include "tiered_store.h"

namespace hydra {
namespace {

using ClaimState = ShardStore::ClaimState;

struct Setting {
  std::string name;
  bool evict_at_once = false;
  bool delayed = false;
  bool failing = false;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

constexpr std::int64_t kLargestPart = 20000;
constexpr int kParts = 30;

TieredOptions options_of(const Setting& setting, std::uint64_t seed, Bytes host) {
  TieredOptions options;
  options.devices = {Bytes(60 << 10), Bytes(80 << 10)};
  options.host = host;
  options.drive = Bytes(1 << 20);
  options.store.evict_at_once = setting.evict_at_once;
  options.faults.poison_on_release = true;  // a copy that is used after it was dropped is seen
  if (setting.delayed) {
    options.faults.delay_seed = seed;
    options.faults.largest_delay = std::chrono::microseconds(60);
    options.disorder_seed = seed;
  }
  return options;
}

class TieredStoreRandomTest : public ::testing::TestWithParam<Setting> {
 protected:
  struct Model {
    std::uint64_t content = 0;
    Bytes size;
  };
  struct OpenClaim {
    DeviceId device;
    std::vector<PartId> parts;
    bool ready = false;
  };
  struct OpenHostClaim {
    std::vector<PartId> parts;
    Bytes room;
    bool ready = false;
  };

  void run(std::uint64_t seed) {
    random_ = SplitMix64(mix_seed(seed, {78}));
    // From a tenth of the parts' bytes (the largest part, at least) to all of them.
    const auto share = static_cast<std::int64_t>(1 + below(10));
    host_ = std::max(Bytes(kParts * kLargestPart / 2 * share / 10), Bytes(kLargestPart));
    store_ = std::make_unique<TieredStore>(options_of(GetParam(), seed + 1, host_));
    dirtied_ = Bytes(0);
    for (int i = 0; i < kParts; ++i) add_part();
    for (int step = 0; step < 1500; ++step) {
      operate();
      check_budgets();
      if (HasFatalFailure()) return;
    }
    end_well();
    store_.reset();
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }
  TieredStore& store() { return *store_; }
  ShardStore& shards() { return *store_->operator->(); }
  DriveSwitches& drive() { return store_->tier().switches(); }
  PartId any_part() {
    return std::next(model_.begin(), static_cast<int>(below(model_.size())))->first;
  }
  std::vector<PartId> any_parts(std::uint64_t most) {
    std::set<PartId> chosen;
    for (std::uint64_t i = 0; i < 1 + below(most); ++i) chosen.insert(any_part());
    return {chosen.begin(), chosen.end()};
  }
  template <typename Map>
  auto any_of(const Map& map) {
    return std::next(map.begin(), static_cast<int>(below(map.size())))->first;
  }

  void finish() {
    const auto failed = store().finish_any(random_);
    if (failed && failed->retried) unwritable_.insert(failed->part);
  }

  void operate() {
    switch (below(14)) {
      case 0:
        if (claims_.size() < 5) open();
        break;
      case 1:
        if (host_claims_.size() < 4) open_host();
        break;
      case 2:
      case 3:
        if (!claims_.empty()) advance(any_of(claims_));
        break;
      case 4:
      case 5:
        if (!host_claims_.empty()) advance_host(any_of(host_claims_));
        break;
      case 6:
        if (!claims_.empty() && below(2) == 0) close(any_of(claims_));
        break;
      case 7:
        if (!host_claims_.empty() && below(2) == 0) close_host(any_of(host_claims_));
        break;
      case 8:
      case 9:
      case 10:
        while (store().under_way() > 0 && below(4) != 0) finish();
        break;
      case 11:
        shards().settle(any_part());
        break;
      case 12:
        shards().prefetch(any_parts(4));
        break;
      default:
        rare();
    }
  }

  void rare() {
    switch (below(6)) {
      case 0:
        shards().clear_device(DeviceId(static_cast<std::int64_t>(below(2))));
        break;
      case 1:
        replace(any_part());
        break;
      case 2: {
        const auto uses = [mixed = below(1000)](PartId part) {
          return static_cast<double>(mix_seed(mixed, {static_cast<std::uint64_t>(part.value())}) %
                                     10);
        };
        shards().set_next_use(uses);
        break;
      }
      case 3:
        if (workspace_) {
          workspace_.reset();
        } else {
          workspace_ = shards().reserve_workspace(DeviceId(0),
                                                  Bytes(static_cast<std::int64_t>(below(60000))));
        }
        break;
      case 4:
        if (GetParam().failing) drive().fail_after = static_cast<std::int64_t>(below(4));
        break;
      default:
        if (GetParam().failing) {
          auto& device = store().device(below(2));
          const auto after = static_cast<std::int64_t>(below(3));
          below(2) == 0 ? device.fail_copy_after(after) : device.fail_allocation_after(after);
        }
    }
  }

  // One after the other, so that this makes the room by evicting those before.
  void add_part() {
    const Bytes size(static_cast<std::int64_t>(1 + below(kLargestPart)));
    const HostClaimId claim = shards().open_host_claim({}, size);
    for (int patience = 0; shards().advance(claim) != ClaimState::kReady; ++patience) {
      if (store().under_way() == 0) {  // others hold the room
        shards().close_host_claim(claim);
        return;
      }
      finish();
    }
    HostBuffer buffer = store().tier().storage().arena->allocate(shards().take_room(claim));
    shards().close_host_claim(claim);
    TieredStore::fill(buffer.data(), size, ++contents_);
    const PartId part = shards().add({JobId(0), "part", std::move(buffer), true});
    model_[part] = {contents_, size};
    dirtied_ += size;
  }

  void open() {
    OpenClaim claim{DeviceId(static_cast<std::int64_t>(below(2))), any_parts(3)};
    claims_.emplace(shards().open_claim(claim.device, claim.parts), claim);
  }

  void open_host() {
    OpenHostClaim claim{any_parts(3), Bytes(0)};
    if (below(4) == 0) claim.room = Bytes(static_cast<std::int64_t>(below(kLargestPart)));
    Bytes all = claim.room;
    for (const PartId part : claim.parts) all += model_.at(part).size;
    if (all > host_) {
      EXPECT_THROW(shards().open_host_claim(claim.parts, claim.room), DoesNotFit);
      return;
    }
    host_claims_.emplace(shards().open_host_claim(claim.parts, claim.room), claim);
  }

  void advance(ShardStore::ClaimId id) {
    OpenClaim& claim = claims_.at(id);
    const bool was_ready = claim.ready;
    claim.ready = shards().advance(id) == ClaimState::kReady;
    EXPECT_TRUE(claim.ready || !was_ready) << "a ready claim was lost";
    if (!claim.ready) return;
    for (const PartId part : claim.parts) {
      ASSERT_TRUE(store().holds(id, part, model_.at(part).content)) << part.value();
    }
    const PartId part = claim.parts[below(claim.parts.size())];
    if (below(2) == 0 && !claimed_elsewhere(part, claim.device)) {
      model_.at(part).content = ++contents_;
      dirtied_ += model_.at(part).size;
      store().write(id, part, contents_);
    }
  }

  bool claimed_elsewhere(PartId part, DeviceId device) {
    return std::any_of(claims_.begin(), claims_.end(), [&](const auto& entry) {
      const auto& parts = entry.second.parts;
      return entry.second.device != device &&
             std::find(parts.begin(), parts.end(), part) != parts.end();
    });
  }
  std::int64_t host_claims_of(PartId part) {
    return std::count_if(host_claims_.begin(), host_claims_.end(), [&](const auto& entry) {
      const auto& parts = entry.second.parts;
      return std::find(parts.begin(), parts.end(), part) != parts.end();
    });
  }

  void advance_host(HostClaimId id) {
    OpenHostClaim& claim = host_claims_.at(id);
    const bool was_ready = claim.ready;
    claim.ready = shards().advance(id) == ClaimState::kReady;
    EXPECT_TRUE(claim.ready || !was_ready) << "a ready host claim was lost";
    if (!claim.ready) return;
    for (const PartId part : claim.parts) {
      ASSERT_TRUE(store().holds(id, part, model_.at(part).content)) << part.value();
      if (below(2) != 0) continue;
      model_.at(part).content = ++contents_;
      dirtied_ += model_.at(part).size;
      store().write(id, part, contents_);
    }
    const PartId part = claim.parts.front();
    if (below(5) != 0 || claimed_elsewhere(part, DeviceId()) || host_claims_of(part) > 1) return;
    const HostBuffer taken = shards().take_home(id, part);
    EXPECT_TRUE(TieredStore::is(taken.data(), taken.size(), model_.at(part).content));
    model_.erase(part);
    std::erase(claim.parts, part);
    if (claim.parts.empty()) close_host(id);
  }

  void close(ShardStore::ClaimId id) {
    shards().close_claim(id);
    claims_.erase(id);
  }
  void close_host(HostClaimId id) {
    shards().close_host_claim(id);
    host_claims_.erase(id);
  }

  void replace(PartId part) {
    if (!shards().idle(part)) return;
    shards().remove(part);
    model_.erase(part);
    add_part();
  }

  void check_budgets() {
    for (std::int64_t d = 0; d < 2; ++d) {
      const TierBudget& ledger = shards().ledger(DeviceId(d));
      EXPECT_LE(ledger.peak(), store().device(static_cast<std::size_t>(d)).budget());
      EXPECT_LE(store().device(static_cast<std::size_t>(d)).stats().in_use, ledger.reserved());
    }
    EXPECT_LE(store().tier().host().peak(), host_);
    if (!GetParam().failing) {
      EXPECT_LE(shards().counters().storage_written_bytes, dirtied_)
          << "something clean was written";
    }
  }

  // What their jobs' ends would do.
  void remove_unwritable() {
    for (const PartId part : unwritable_) {
      if (!model_.contains(part)) continue;
      while (!shards().idle(part)) finish();
      shards().remove(part);
      model_.erase(part);
    }
    unwritable_.clear();
  }

  // Whatever happened: all claims can be closed, every part is the last version of it everywhere,
  // nothing is left.
  void end_well() {
    drive().fail_after = -1;
    for (std::size_t d = 0; d < 2; ++d) {
      store().device(d).fail_copy_after(-1);
      store().device(d).fail_allocation_after(-1);
    }
    workspace_.reset();
    while (!claims_.empty()) close(claims_.begin()->first);
    while (!host_claims_.empty()) close_host(host_claims_.begin()->first);
    remove_unwritable();
    for (auto& [part, known] : model_) {
      for (std::int64_t d = 0; d < 2; ++d) {
        const auto claim = shards().open_claim(DeviceId(d), {part});
        while (shards().advance(claim) != ClaimState::kReady) {
          ASSERT_GT(store().under_way(), 0) << "nothing is under way, and nothing is ready";
          finish();
        }
        EXPECT_TRUE(store().holds(claim, part, known.content));
        shards().close_claim(claim);
      }
      const HostClaimId claim = shards().open_host_claim({part});
      while (shards().advance(claim) != ClaimState::kReady) {
        ASSERT_GT(store().under_way(), 0) << "nothing is under way, and nothing is ready";
        finish();
      }
      EXPECT_TRUE(store().holds(claim, part, known.content));
      shards().close_host_claim(claim);
    }
    while (store().under_way() > 0) finish();
    for (auto& [part, known] : model_) shards().remove(part);
    while (store().under_way() > 0) finish();
    store().expect_balance();
    model_.clear();
  }

  SplitMix64 random_{0};
  Bytes host_;
  Bytes dirtied_;
  std::unique_ptr<TieredStore> store_;
  std::uint64_t contents_ = 0;
  std::map<PartId, Model> model_;
  std::map<ShardStore::ClaimId, OpenClaim> claims_;
  std::map<HostClaimId, OpenHostClaim> host_claims_;
  std::optional<Reservation> workspace_;
  std::set<PartId> unwritable_;
};

TEST_P(TieredStoreRandomTest, EveryTierHoldsTheLastWriteAndNothingIsLeft) {
  for (int seed = 0; seed < testing::sweep_rounds(20); ++seed) {
    SCOPED_TRACE(seed);
    run(static_cast<std::uint64_t>(seed));
    if (HasFailure()) return;
  }
}

/// Clients that each go on until they have done their work: devices that read or write, and updates
/// by the host.
class TieredStoreProgressTest : public ::testing::TestWithParam<Setting> {
 protected:
  struct Client {
    std::optional<DeviceId> device;  // none: the host
    std::int64_t left = 0;
    std::optional<ShardStore::ClaimId> claim;
    std::optional<HostClaimId> host_claim;
    std::vector<PartId> parts;
  };

  void run(std::uint64_t seed, std::int64_t percent) {
    random_ = SplitMix64(mix_seed(seed, {79, static_cast<std::uint64_t>(percent)}));
    const Bytes total(kParts * kSize.count());
    const Bytes host = Bytes(total.count() * percent / 100);
    TieredStore store(options_of(GetParam(), seed + 1, host));
    std::map<PartId, std::uint64_t> contents;
    std::vector<PartId> parts;
    for (int i = 0; i < kParts; ++i) {
      parts.push_back(store.add(kSize, ++content_));
      contents[parts.back()] = content_;
    }
    std::vector<Client> clients(5);
    clients[0].device = DeviceId(0);
    clients[1].device = DeviceId(1);
    for (Client& client : clients) client.left = 40;
    while (std::any_of(clients.begin(), clients.end(), [](auto& c) { return c.left > 0; })) {
      bool any = false;
      for (Client& client : clients) {
        if (client.left > 0) any = turn(store, client, parts, contents, host) || any;
      }
      if (HasFatalFailure()) return;
      if (any) continue;
      ASSERT_GT(store.under_way(), 0) << "everybody waits, for nothing";
      store.finish_any(random_);
    }
    if (percent == 100 && !GetParam().evict_at_once) {
      EXPECT_EQ(store->counters().storage_writes, 0);
      EXPECT_EQ(store->counters().storage_reads, 0);
    }
    while (store.under_way() > 0) store.finish_any(random_);
    for (const PartId part : parts) store->remove(part);
    while (store.under_way() > 0) store.finish_any(random_);
    store.expect_balance();
  }

 private:
  static constexpr Bytes kSize{10000};

  // True when the client has come further.
  bool turn(TieredStore& store, Client& client, const std::vector<PartId>& parts,
            std::map<PartId, std::uint64_t>& contents, Bytes host) {
    if (!client.claim && !client.host_claim) {
      const auto most = client.device ? 4 : std::min<std::int64_t>(4, host.count() / kSize.count());
      std::set<PartId> chosen;
      while (static_cast<std::int64_t>(chosen.size()) < most) {
        const PartId part = parts[random_.below(parts.size())];
        // Two devices that each wait for what the other has written would wait for ever.
        if (client.device && part.value() % 2 != client.device->value()) continue;
        chosen.insert(part);
      }
      client.parts.assign(chosen.begin(), chosen.end());
      if (random_.below(3) == 0) store->prefetch(client.parts);
      if (client.device) {
        client.claim = store->open_claim(*client.device, client.parts);
      } else {
        client.host_claim = store->open_host_claim(client.parts);
      }
      return true;
    }
    const ClaimState state =
        client.claim ? store->advance(*client.claim) : store->advance(*client.host_claim);
    if (state != ClaimState::kReady) return false;
    for (const PartId part : client.parts) {
      const bool right = client.claim ? store.holds(*client.claim, part, contents[part])
                                      : store.holds(*client.host_claim, part, contents[part]);
      EXPECT_TRUE(right) << part.value();
    }
    const PartId part = client.parts[random_.below(client.parts.size())];
    contents[part] = ++content_;
    if (client.claim) {
      store.write(*client.claim, part, content_);
    } else {
      store.write(*client.host_claim, part, content_);
    }
    if (client.claim) store->close_claim(*client.claim);
    if (client.host_claim) store->close_host_claim(*client.host_claim);
    client.claim.reset();
    client.host_claim.reset();
    client.parts.clear();
    --client.left;
    return true;
  }

  SplitMix64 random_{0};
  std::uint64_t content_ = 0;
};

TEST_P(TieredStoreProgressTest, EverybodyGetsDoneAtEveryHostBudget) {
  for (int seed = 0; seed < testing::sweep_rounds(3); ++seed) {
    for (const std::int64_t percent : {4, 10, 15, 20, 35, 50, 75, 90, 100}) {
      SCOPED_TRACE(std::to_string(seed) + ", " + std::to_string(percent) + " %");
      run(static_cast<std::uint64_t>(seed), percent);
      if (HasFailure()) return;
    }
  }
}

const auto kSettings =
    ::testing::Values(Setting{"default"}, Setting{"evicting", true},
                      Setting{"delayed", false, true}, Setting{"evicting_and_delayed", true, true});
const auto kNames = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Settings, TieredStoreProgressTest, kSettings, kNames);
INSTANTIATE_TEST_SUITE_P(Settings, TieredStoreRandomTest, kSettings, kNames);
INSTANTIATE_TEST_SUITE_P(Failing, TieredStoreRandomTest,
                         ::testing::Values(Setting{"failing", false, false, true},
                                           Setting{"everything", true, true, true}),
                         kNames);

}  // namespace
}  // namespace hydra
