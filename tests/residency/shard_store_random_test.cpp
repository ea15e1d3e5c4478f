// Random operations against a model that knows the last write of every part.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "hydra/testing/sweep.h"
#include "shard_store_fixture.h"

namespace hydra {
namespace {

struct Setting {
  std::string name;
  bool evict_at_once;
  bool delayed;
  bool failing;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

VirtualDeviceOptions::Faults faults_of(const Setting& setting) {
  VirtualDeviceOptions::Faults faults;
  faults.poison_on_release = true;  // a copy that is used after it was dropped is seen
  if (setting.delayed) {
    faults.delay_seed = 21;
    faults.largest_delay = std::chrono::microseconds(60);
  }
  return faults;
}

class ShardStoreRandomTest : public ShardStoreFixture,
                             public ::testing::WithParamInterface<Setting> {
 protected:
  ShardStoreRandomTest()
      : ShardStoreFixture({Bytes(200 << 10), Bytes(150 << 10), Bytes(300 << 10)},
                          {.evict_at_once = GetParam().evict_at_once}, faults_of(GetParam())) {}

  struct OpenClaim {
    DeviceId device;
    std::vector<PartId> parts;
    bool ready = false;
  };
  struct Model {
    std::uint64_t content = 0;
    bool host_writing = false;
    Bytes size;
  };

  void run(std::uint64_t seed) {
    random_ = SplitMix64(mix_seed(seed, {77}));
    for (int i = 0; i < 10; ++i) add_part();
    for (int step = 0; step < 1500; ++step) {
      operate();
      check_ledgers();
      if (HasFatalFailure()) return;
    }
    end_well();
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }
  DeviceId any_device() { return DeviceId(static_cast<std::int64_t>(below(3))); }
  PartId any_part() {
    return std::next(model_.begin(), static_cast<int>(below(model_.size())))->first;
  }

  void operate() {
    switch (below(12)) {
      case 0:
      case 1:
        if (claims_.size() < 6) open();
        break;
      case 2:
      case 3:
      case 4:
        if (!claims_.empty()) advance(any_claim());
        break;
      case 5:
        if (!claims_.empty() && below(2) == 0) close(any_claim());
        break;
      case 6:
      case 7:
        while (try_finish_one() && below(2) == 0) {
        }
        break;
      case 8:
        settle_one(any_part());
        break;
      case 9:
        write_by_host(any_part());
        break;
      case 10:
        use_room();
        break;
      default:
        rare();
    }
  }

  void rare() {
    switch (below(5)) {
      case 0:
        store().clear_device(any_device());
        break;
      case 1:
        replace(any_part());
        break;
      case 2:
        next_uses_ = below(1000);
        store().set_next_use([mixed = next_uses_](PartId part) {
          return static_cast<double>(mix_seed(mixed, {static_cast<std::uint64_t>(part.value())}) %
                                     10);
        });
        break;
      case 3:
        if (GetParam().failing)
          device(any_device()).fail_copy_after(static_cast<std::int64_t>(below(3)));
        break;
      default:
        if (GetParam().failing) {
          device(any_device()).fail_allocation_after(static_cast<std::int64_t>(below(3)));
        }
    }
  }

  void add_part() {
    const Bytes size(static_cast<std::int64_t>(1 + below(60000)));
    const std::uint64_t content = ++contents_;
    model_[add(size, content)] = {content, false, size};
  }

  void open() {
    std::set<PartId> chosen;
    for (std::uint64_t i = 0; i < 1 + below(3); ++i) chosen.insert(any_part());
    OpenClaim claim{any_device(), {chosen.begin(), chosen.end()}};
    claims_.emplace(store().open_claim(claim.device, claim.parts), claim);
  }

  ShardStore::ClaimId any_claim() {
    return std::next(claims_.begin(), static_cast<int>(below(claims_.size())))->first;
  }

  void advance(ShardStore::ClaimId id) {
    OpenClaim& claim = claims_.at(id);
    const bool was_ready = claim.ready;
    claim.ready = store().advance(id) == ShardStore::ClaimState::kReady;
    EXPECT_TRUE(claim.ready || !was_ready) << "a ready claim was lost";
    if (!claim.ready) return;
    EXPECT_EQ(store().missing(claim.parts, claim.device), Bytes(0));
    for (const PartId part : claim.parts) {
      ASSERT_TRUE(device_holds(id, part, model_.at(part).content)) << store().label(part);
    }
    const PartId part = claim.parts[below(claim.parts.size())];
    if (below(2) == 0 && !claimed_elsewhere(part, claim.device)) {
      model_.at(part).content = ++contents_;
      written_ += model_.at(part).size;
      write(id, part, contents_);
    }
  }

  bool claimed_elsewhere(PartId part, DeviceId device) {
    return std::any_of(claims_.begin(), claims_.end(), [&](const auto& entry) {
      const OpenClaim& claim = entry.second;
      return claim.device != device &&
             std::find(claim.parts.begin(), claim.parts.end(), part) != claim.parts.end();
    });
  }

  void close(ShardStore::ClaimId id) {
    store().close_claim(id);
    claims_.erase(id);
  }

  void settle_one(PartId part) {
    if (store().settle(part) && !model_.at(part).host_writing) {
      ASSERT_TRUE(host_holds(part, model_.at(part).content));
    }
  }

  void write_by_host(PartId part) {
    Model& known = model_.at(part);
    if (known.host_writing) {
      end_host_write(part, known);
    } else if (store().idle(part) && store().settle(part)) {
      known.host_writing = true;
      fill(store().begin_host_write(part), known.size, 0);  // a load that did not wait reads this
    }
  }

  void end_host_write(PartId part, Model& known) {
    known.content = ++contents_;
    known.host_writing = false;
    fill(const_cast<std::byte*>(store().host_data(part)), known.size, known.content);
    store().end_host_write(part);
  }

  void replace(PartId part) {
    if (!store().idle(part)) return;
    if (below(2) == 0) {
      store().remove(part);
    } else if (store().settle(part)) {
      const HostBuffer home = store().take_home(part);
      ASSERT_TRUE(holds(home.data(), home.size(), model_.at(part).content));
    } else {
      return;
    }
    model_.erase(part);
    add_part();
  }

  void use_room() {
    if (workspaces_.size() > 3 || (!workspaces_.empty() && below(2) == 0)) {
      workspaces_.erase(workspaces_.begin());
      return;
    }
    const Bytes room(static_cast<std::int64_t>(below(120000)));
    if (auto granted = store().reserve_workspace(any_device(), room)) {
      EXPECT_EQ(granted->bytes(), room);
      workspaces_.push_back(std::move(*granted));
    }
  }

  void check_ledgers() {
    for (std::int64_t d = 0; d < 3; ++d) {
      const TierBudget& ledger = store().ledger(DeviceId(d));
      EXPECT_LE(ledger.peak(), device(DeviceId(d)).budget());
      EXPECT_LE(device(DeviceId(d)).stats().in_use, ledger.reserved());
    }
    Bytes downloaded_bytes;
    for (std::int64_t d = 0; d < 3; ++d) downloaded_bytes += downloaded(DeviceId(d));
    EXPECT_LE(downloaded_bytes, written_) << "something clean was written back";
  }

  // Whatever happened: all claims can be closed, all homes become current, nothing is left.
  void end_well() {
    for (std::int64_t d = 0; d < 3; ++d) {
      device(DeviceId(d)).fail_copy_after(-1);
      device(DeviceId(d)).fail_allocation_after(-1);
    }
    workspaces_.clear();
    while (!claims_.empty()) close(claims_.begin()->first);
    for (auto& [part, known] : model_) {
      if (known.host_writing) end_host_write(part, known);
      for (std::int64_t d = 0; d < 3; ++d) {
        const auto claim = claim_ready(DeviceId(d), {part});
        EXPECT_TRUE(device_holds(claim, part, known.content));
        store().close_claim(claim);
      }
      settle(part);
      while (!store().idle(part)) finish_one();
      EXPECT_TRUE(host_holds(part, known.content));
      store().remove(part);
    }
    EXPECT_FALSE(try_finish_one());
    for (std::int64_t d = 0; d < 3; ++d) {
      EXPECT_EQ(store().ledger(DeviceId(d)).reserved(), Bytes(0));
      EXPECT_EQ(device(DeviceId(d)).stats().in_use, Bytes(0));
    }
    EXPECT_EQ(host().reserved(), Bytes(0));
    model_.clear();
  }

  SplitMix64 random_{0};
  std::uint64_t contents_ = 0;
  std::uint64_t next_uses_ = 0;
  Bytes written_;
  std::map<PartId, Model> model_;
  std::map<ShardStore::ClaimId, OpenClaim> claims_;
  std::vector<Reservation> workspaces_;
};

TEST_P(ShardStoreRandomTest, DevicesAndHomesHoldTheLastWriteAndNothingIsLeft) {
  for (int seed = 0; seed < testing::sweep_rounds(20); ++seed) {
    SCOPED_TRACE(seed);
    run(static_cast<std::uint64_t>(seed));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, ShardStoreRandomTest,
                         ::testing::Values(Setting{"default", false, false, false},
                                           Setting{"evicting", true, false, false},
                                           Setting{"delayed", false, true, false},
                                           Setting{"failing", false, false, true},
                                           Setting{"everything", true, true, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hydra
