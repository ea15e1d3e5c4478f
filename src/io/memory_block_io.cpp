#include <cerrno>
#include <cstring>

#include "hydra/io/block_io.h"
#include "io/done_queue.h"

namespace hydra {
namespace {

/// A drive made of memory. Transfers are done when they are submitted.
class MemoryBlockIo final : public BlockIo {
 public:
  explicit MemoryBlockIo(Bytes capacity) : bytes_(capacity.size()) {}

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
    if (offset + size > bytes_.size()) return -EINVAL;
    if (operation.write) {
      std::memcpy(bytes_.data() + offset, operation.data, size);
    } else {
      std::memcpy(operation.data, bytes_.data() + offset, size);
    }
    return operation.bytes;
  }

  std::vector<std::byte> bytes_;
  DoneQueue done_;
};

}  // namespace

std::unique_ptr<BlockIo> make_memory_block_io(Bytes capacity) {
  return std::make_unique<MemoryBlockIo>(capacity);
}

}  // namespace hydra
