// A drive that does not answer is named, and waited for.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hydra/core/error.h"
#include "hydra/testing/owned_store.h"
#include "kept_log.h"

namespace hydra {
namespace testing {
namespace {

using std::chrono::milliseconds;

/// Keeps completions of one kind back until it is let go.
struct Withholding final : BlockIo {
  Withholding(std::unique_ptr<BlockIo> under, std::shared_ptr<std::atomic<int>> kept_back)
      : inner(std::move(under)), withheld(std::move(kept_back)) {}
  std::string_view name() const noexcept override { return inner->name(); }
  void submit(std::span<const BlockOp> list) override { inner->submit(list); }
  void wait(std::vector<BlockDone>& done, Nanoseconds most) override {
    inner->wait(kept, std::min<Nanoseconds>(most, milliseconds(1)));
    while (!kept.empty() && (kept.size() > static_cast<std::size_t>(withheld->load()))) {
      done.push_back(kept.back());
      kept.pop_back();
    }
  }
  void wake() noexcept override { inner->wake(); }
  std::unique_ptr<BlockIo> inner;
  std::shared_ptr<std::atomic<int>> withheld;  // so many
  std::vector<BlockDone> kept;
};

struct SilentStore {
  explicit SilentStore(milliseconds warn_after)
      : store({.drives = {{"the-directory", Bytes(8 << 20)}},
               .kind = BlockIoKind::kMemory,
               .depth = 4,
               .block = Bytes(1 << 16),
               .warn_after = warn_after,
               .log = &log,
               .wrap = [this](std::unique_ptr<BlockIo> io) {
                 return std::make_unique<Withholding>(std::move(io), withheld);
               }}) {}
  KeptLog log;
  std::shared_ptr<std::atomic<int>> withheld = std::make_shared<std::atomic<int>>(0);
  OwnedStore store;
};

TEST(SilentDriveTest, ItIsNamedWithWhatWaitsForIt) {
  SilentStore silent(milliseconds(50));
  *silent.withheld = 100;
  const AlignedBytes bytes(10 << 16, 1);
  const auto extent = silent.store->allocate(Bytes(10 << 16), "job 3 shard 1 parameters");
  const auto request = silent.store->write(*extent, bytes.data(), 0);
  while (silent.log.lines().empty()) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(silent.store.has_ended(request));
  *silent.withheld = 0;
  silent.store.get(request);
  const std::string line = silent.log.lines().front();
  for (const char* part : {"the-directory", "has not answered for 0.0", "4 transfers are in flight",
                           "6 more wait", "job 3 shard 1 parameters"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
}

TEST(SilentDriveTest, ItIsNamedMoreAndMoreRarely) {
  SilentStore silent(milliseconds(20));
  *silent.withheld = 100;
  const AlignedBytes bytes(1 << 16, 1);
  const auto extent = silent.store->allocate(Bytes(1 << 16), "part");
  const auto request = silent.store->write(*extent, bytes.data(), 0);
  std::this_thread::sleep_for(milliseconds(600));
  *silent.withheld = 0;
  silent.store.get(request);
  EXPECT_GE(silent.log.lines().size(), 2U);
  EXPECT_LE(silent.log.lines().size(), 6U);  // after 20, 40, 80, 160, 320 ms and perhaps 640
}

TEST(SilentDriveTest, OneTransferThatHangsAmongOthersThatPassIsNamed) {
  SilentStore silent(milliseconds(100));
  *silent.withheld = 1;
  const AlignedBytes bytes(1 << 16, 1);
  const auto extent = silent.store->allocate(Bytes(1 << 16), "hangs");
  const auto hangs = silent.store->write(*extent, bytes.data(), 0);
  while (silent.log.lines().empty()) {
    const auto other = silent.store->allocate(Bytes(4096), "passes");
    silent.store.get(silent.store->write(*other, bytes.data(), 0));
    silent.store->free(*other);
  }
  EXPECT_NE(silent.log.lines().front().find("hangs"), std::string::npos);
  *silent.withheld = 0;
  silent.store.get(hangs);
}

TEST(SilentDriveTest, ADriveThatAnswersAndOneThatIsIdleAreNotNamed) {
  SilentStore silent(milliseconds(200));
  const AlignedBytes bytes(1 << 16, 1);
  const auto extent = silent.store->allocate(Bytes(1 << 16), "part");
  const auto end = std::chrono::steady_clock::now() + milliseconds(500);
  while (std::chrono::steady_clock::now() < end) {
    silent.store.get(silent.store->write(*extent, bytes.data(), 0));
  }
  std::this_thread::sleep_for(milliseconds(300));
  silent.store.get(silent.store->write(*extent, bytes.data(), 0));
  EXPECT_TRUE(silent.log.lines().empty());
}

TEST(SilentDriveTest, ATimeThatIsNotPositiveIsRefused) {
  EXPECT_THROW(SilentStore(milliseconds(0)), InvalidArgument);
}

}  // namespace
}  // namespace testing
}  // namespace hydra
