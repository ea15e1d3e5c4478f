#pragma once

#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hydra/core/inbox.h"
#include "hydra/io/block_io.h"
#include "hydra/io/extent_store.h"
#include "hydra/io/faulty_block_io.h"
#include "hydra/memory/host_arena.h"
#include "hydra/memory/tier_budget.h"
#include "hydra/residency/shard_store.h"

namespace hydra {

/// Switches by which a test makes a drive's transfers go wrong while it is in use.
struct DriveSwitches {
  enum class Kind {
    kError,  ///< EIO
    kWrong,  ///< a bit of what is read is wrong; what is written is lost, and said to be there
  };
  std::atomic<Kind> kind{Kind::kError};
  std::atomic<std::int64_t> fail_after{-1};  ///< transfers that go well first; < 0: all of them
  std::atomic<std::int64_t> fail_count{1};   ///< and how many then fail
  std::atomic<bool> fail_reads{false};       ///< every one
  std::atomic<bool> fail_writes{false};
  std::atomic<bool> flip_reads{false};  ///< a bit of every block comes back wrong
  std::atomic<std::int64_t> transfers{0};
};

/// A drive that obeys switches.
class SwitchedBlockIo final : public BlockIo {
 public:
  SwitchedBlockIo(std::unique_ptr<BlockIo> inner, std::shared_ptr<DriveSwitches> switches)
      : inner_(std::move(inner)), switches_(std::move(switches)) {}

  std::string_view name() const noexcept override { return inner_->name(); }
  void submit(std::span<const BlockOp> operations) override {
    for (const BlockOp& operation : operations) {
      ++switches_->transfers;
      const bool due = fails_now();
      const bool wrong = due && switches_->kind == DriveSwitches::Kind::kWrong;
      if (wrong && operation.write) {
        planted_.push_back({operation.tag, operation.bytes});
      } else if ((due && !wrong) ||
                 (operation.write ? switches_->fail_writes : switches_->fail_reads)) {
        planted_.push_back({operation.tag, -EIO});
      } else {
        inner_->submit({&operation, 1});  // memory: done when it returns
        const bool flip = wrong || (!operation.write && switches_->flip_reads);
        if (flip) operation.data[9] ^= std::byte{1};
      }
    }
  }
  void wait(std::vector<BlockDone>& done, Nanoseconds most) override {
    if (planted_.empty()) {
      inner_->wait(done, most);
    } else {
      done.insert(done.end(), planted_.begin(), planted_.end());
      planted_.clear();
    }
  }
  void wake() noexcept override { inner_->wake(); }

 private:
  bool fails_now() {
    if (switches_->fail_after < 0 || switches_->fail_after-- > 0) return false;
    switches_->fail_after = --switches_->fail_count > 0 ? 0 : -1;
    return true;
  }

  const std::unique_ptr<BlockIo> inner_;
  const std::shared_ptr<DriveSwitches> switches_;
  std::vector<BlockDone> planted_;
};

/// A storage tier in memory, whose completions go to an inbox of the test's.
template <typename Message>
class StorageTier {
 public:
  StorageTier(Bytes host, Bytes drive, Inbox<Message>& inbox,
              std::optional<std::uint64_t> disorder_seed = {})
      : host_("host cache", host),
        extents_(options(drive, disorder_seed),
                 [&inbox](ExtentStore::Done done) { inbox.push(std::move(done)); }) {}

  ShardStore::Storage storage() { return {&extents_, &host_, &arena_}; }
  ExtentStore& extents() { return extents_; }
  TierBudget& host() { return host_; }
  DriveSwitches& switches() { return *switches_; }
  HostBuffer buffer(Bytes size) { return arena_.allocate(host_.try_reserve(size).value()); }
  Bytes read_bytes() { return extents_.stats(false).bytes; }
  Bytes written_bytes() { return extents_.stats(true).bytes; }

 private:
  ExtentStoreOptions options(Bytes drive, std::optional<std::uint64_t> disorder_seed) {
    ExtentStoreOptions options;
    options.drives = {{"memory", drive}};
    options.kind = BlockIoKind::kMemory;
    options.block = Bytes(16 << 10);
    options.wrap = [switches = switches_, disorder_seed](std::unique_ptr<BlockIo> io) {
      io = std::make_unique<SwitchedBlockIo>(std::move(io), switches);
      if (disorder_seed) io = make_faulty_block_io(std::move(io), {.disorder_seed = disorder_seed});
      return io;
    };
    return options;
  }

  std::shared_ptr<DriveSwitches> switches_ = std::make_shared<DriveSwitches>();
  TierBudget host_;
  HostArena arena_{Bytes(64 << 20)};
  ExtentStore extents_;
};

}  // namespace hydra
