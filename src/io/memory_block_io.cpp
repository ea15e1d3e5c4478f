#include <cerrno>
#include <cstring>

#include "hydra/core/mutex.h"
#include "hydra/io/block_io.h"

namespace hydra {
namespace {

/// A drive made of memory. Transfers are done when they are submitted.
class MemoryBlockIo final : public BlockIo {
 public:
  explicit MemoryBlockIo(Bytes capacity) : bytes_(capacity.size()) {}

  std::string_view name() const noexcept override { return "memory"; }

  void submit(std::span<const BlockOp> operations) override {
    for (const BlockOp& operation : operations) {
      const std::int64_t result = transfer(operation);
      MutexLock lock(mutex_);
      done_.push_back({operation.tag, result});
    }
  }

  void wait(std::vector<BlockDone>& done) override {
    MutexLock lock(mutex_);
    while (done_.empty() && !woken_) arrived_.wait(mutex_);
    woken_ = false;
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
  }

  void wake() noexcept override {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    arrived_.notify_one();
  }

 private:
  std::int64_t transfer(const BlockOp& operation) {
    const auto offset = static_cast<std::size_t>(operation.offset);
    const auto size = static_cast<std::size_t>(operation.bytes);
    if (offset + size > bytes_.size()) return -EINVAL;
    if (operation.write) {
      std::memcpy(bytes_.data() + offset, operation.data, size);
    } else {
      std::memcpy(operation.data, bytes_.data() + offset, size);
    }
    return operation.bytes;
  }

  std::vector<std::byte> bytes_;
  Mutex mutex_;
  ConditionVariable arrived_;
  std::vector<BlockDone> done_ HYDRA_GUARDED_BY(mutex_);
  bool woken_ HYDRA_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<BlockIo> make_memory_block_io(Bytes capacity) {
  return std::make_unique<MemoryBlockIo>(capacity);
}

}  // namespace hydra
