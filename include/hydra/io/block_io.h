#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"
#include "hydra/core/log.h"

namespace hydra {

/// One transfer between memory and a drive. `offset`, `bytes` and `data` are multiples of
/// kExtentAlignment.
struct BlockOp {
  bool write = false;
  std::int64_t offset = 0;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  std::uint64_t tag = 0;  ///< comes back with the completion
};

/// The end of a transfer: bytes moved (fewer than asked for is possible), or a negated errno.
struct BlockDone {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

/// Moves blocks to and from one drive, asynchronously, as the system call underneath does: short
/// transfers and errors are passed on as they are.
///
/// The interface itself may fail for good (`failure`): it then takes no more work, what had not
/// been handed to the system comes back as failed, and what had comes back when the system is done
/// with it, as ever.
///
/// Thread safety: `wake` from anywhere, the rest confined to one thread. Lifetime: the memory of an
/// operation is borrowed until its completion has been returned; nothing may be in flight when it
/// is destroyed. Errors: an exception from `submit` says that none of its operations were taken.
class BlockIo {
 public:
  virtual ~BlockIo() = default;
  virtual std::string_view name() const noexcept = 0;
  /// Starts transfers. Those that cannot be started come back from `wait` as failed.
  virtual void submit(std::span<const BlockOp> operations) = 0;
  /// Appends completions. Blocks: until there is at least one, `wake` has been called, or `most`
  /// has passed.
  virtual void wait(std::vector<BlockDone>& done, Nanoseconds most) = 0;
  /// Makes the present or the next `wait` return.
  virtual void wake() noexcept = 0;
  /// Says why the interface takes no more work, for good; empty while it works.
  virtual std::string failure() const { return {}; }
};

/// Which system interface moves the blocks.
enum class BlockIoKind {
  kAutomatic,  ///< io_uring, or threads where the system refuses it
  kUring,
  kThreads,
  kMemory,  ///< no drive at all; for tests
};

/// Makes a BlockIo over an open file for at most `depth` transfers in flight. With kAutomatic, a
/// refusal of io_uring (seccomp, memlock) is said once to `log`, with its cause.
/// Errors: StorageError when what was asked for is refused.
std::unique_ptr<BlockIo> make_block_io(BlockIoKind kind, int file, int depth, LogSink& log);

std::unique_ptr<BlockIo> make_uring_block_io(int file, int depth);
std::unique_ptr<BlockIo> make_thread_block_io(int file, int depth);
std::unique_ptr<BlockIo> make_memory_block_io(Bytes capacity);

}  // namespace hydra
