#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "hydra/core/error.h"
#include "hydra/io/block_io.h"
#include "io/done_queue.h"

namespace hydra {
namespace {

/// A drive made of memory. Transfers are done when they are submitted.
class MemoryBlockIo final : public BlockIo {
 public:
  explicit MemoryBlockIo(Bytes capacity)
      : size_(capacity.size()), bytes_(static_cast<std::byte*>(std::calloc(size_, 1))) {
    if (bytes_ == nullptr) {
      throw StorageError(false, "there is no memory for a drive of " + to_string(capacity));
    }
  }

  std::string_view name() const noexcept override { return "memory"; }

  void submit(std::span<const BlockOp> operations) override {
    for (const BlockOp& operation : operations) done_.push({operation.tag, transfer(operation)});
  }

  void wait(std::vector<BlockDone>& done, Nanoseconds most) override { done_.wait(done, most); }

  void wake() noexcept override { done_.wake(); }

 private:
  std::int64_t transfer(const BlockOp& operation) {
    const auto offset = static_cast<std::size_t>(operation.offset);
    const auto size = static_cast<std::size_t>(operation.bytes);
    if (offset + size > size_) return -EINVAL;
    if (operation.write) {
      std::memcpy(bytes_.get() + offset, operation.data, size);
    } else {
      std::memcpy(operation.data, bytes_.get() + offset, size);
    }
    return operation.bytes;
  }

  struct Free {
    void operator()(std::byte* data) const noexcept { std::free(data); }
  };
  std::size_t size_;
  // Of calloc, so that a page costs memory only once something has been written to it.
  std::unique_ptr<std::byte, Free> bytes_;
  DoneQueue done_;
};

}  // namespace

std::unique_ptr<BlockIo> make_memory_block_io(Bytes capacity) {
  return std::make_unique<MemoryBlockIo>(capacity);
}

}  // namespace hydra
