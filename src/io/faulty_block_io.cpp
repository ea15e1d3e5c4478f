#include "hydra/io/faulty_block_io.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "hydra/core/random.h"
#include "hydra/io/extent_map.h"

namespace hydra {
namespace {

class FaultyBlockIo final : public BlockIo {
 public:
  FaultyBlockIo(std::unique_ptr<BlockIo> inner, BlockFaults faults)
      : inner_(std::move(inner)), faults_(faults), random_(faults.disorder_seed.value_or(0)) {}

  std::string_view name() const noexcept override { return inner_->name(); }

  void submit(std::span<const BlockOp> operations) override {
    for (const BlockOp& operation : operations) {
      const std::int64_t number = count_++;
      const bool due = number >= faults_.first && number < faults_.first + faults_.count;
      start(operation, due || broken_ ? faults_.kind : BlockFaults::Kind::kNone);
    }
  }

  void wait(std::vector<BlockDone>& done, Nanoseconds most) override {
    if (!planted_.empty()) {
      done.insert(done.end(), planted_.begin(), planted_.end());
      planted_.clear();
      return;
    }
    if (late_.empty()) inner_->wait(late_, most);
    for (const BlockDone& end : late_) finish(end);
    if (faults_.disorder_seed) hold_some_back();
    done.insert(done.end(), late_.begin(), late_.end());
    late_ = std::exchange(held_, {});
  }

  void wake() noexcept override { inner_->wake(); }

  std::string failure() const override {
    return broken_ ? std::string("it was broken for a test") : inner_->failure();
  }

 private:
  void start(BlockOp operation, BlockFaults::Kind kind) {
    switch (kind) {
      case BlockFaults::Kind::kError:
        planted_.push_back({operation.tag, -faults_.error});
        return;
      case BlockFaults::Kind::kBroken:
        broken_ = true;
        planted_.push_back({operation.tag, -ESHUTDOWN});
        return;
      case BlockFaults::Kind::kNothing:
        planted_.push_back({operation.tag, 0});
        return;
      case BlockFaults::Kind::kLost:
        if (operation.write) {
          planted_.push_back({operation.tag, operation.bytes});
          return;
        }
        break;
      case BlockFaults::Kind::kShort:
        // Not a multiple of the alignment, as a signal may leave it.
        operation.bytes = operation.bytes / 2 / kExtentAlignment * kExtentAlignment;
        if (operation.bytes == 0) {
          planted_.push_back({operation.tag, 100});
          return;
        }
        break;
      case BlockFaults::Kind::kFlipBit:
        flip_.emplace(operation.tag, operation);
        if (operation.write) operation.data[7] ^= std::byte{4};
        break;
      case BlockFaults::Kind::kNone:
        break;
    }
    inner_->submit({&operation, 1});
  }

  void finish(const BlockDone& end) {
    const auto found = flip_.find(end.tag);
    if (found == flip_.end()) return;
    found->second.data[7] ^= std::byte{4};  // a write gets its memory back as it was
    flip_.erase(found);
  }

  void hold_some_back() {
    std::this_thread::sleep_for(Nanoseconds(static_cast<std::int64_t>(random_.below(50000))));
    for (std::size_t i = late_.size(); i > 1; --i) {
      std::swap(late_[i - 1], late_[random_.below(i)]);
    }
    while (late_.size() > 1 && random_.below(2) == 0) {
      held_.push_back(late_.back());
      late_.pop_back();
    }
  }

  std::unique_ptr<BlockIo> inner_;
  const BlockFaults faults_;
  SplitMix64 random_;
  std::int64_t count_ = 0;
  bool broken_ = false;
  std::vector<BlockDone> planted_;
  std::vector<BlockDone> late_;
  std::vector<BlockDone> held_;
  std::map<std::uint64_t, BlockOp> flip_;
};

}  // namespace

std::unique_ptr<BlockIo> make_faulty_block_io(std::unique_ptr<BlockIo> inner, BlockFaults faults) {
  return std::make_unique<FaultyBlockIo>(std::move(inner), faults);
}

}  // namespace hydra
