#include "hydra/io/block_io.h"

#include <string>

#include "hydra/core/check.h"
#include "hydra/core/error.h"

namespace hydra {

std::unique_ptr<BlockIo> make_block_io(BlockIoKind kind, int file, int depth, LogSink& log) {
  if (kind == BlockIoKind::kThreads) return make_thread_block_io(file, depth);
  HYDRA_CHECK(kind != BlockIoKind::kMemory, "memory has no file");
  try {
    return make_uring_block_io(file, depth);
  } catch (const StorageError& error) {
    if (kind == BlockIoKind::kUring) throw;
    log.log(LogLevel::kWarning,
            std::string(error.what()) + "; threads with pread and pwrite take over");
  }
  return make_thread_block_io(file, depth);
}

}  // namespace hydra
