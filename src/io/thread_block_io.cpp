#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "hydra/core/error.h"
#include "hydra/core/inbox.h"
#include "hydra/io/block_io.h"
#include "io/done_queue.h"

namespace hydra {
namespace {

// More threads than this do not fill a drive any better than they fill the cores.
constexpr int kMostThreads = 16;
constexpr std::size_t kQueuedOperations = 1 << 16;

class ThreadBlockIo final : public BlockIo {
 public:
  ThreadBlockIo(int file, int depth) : file_(file), operations_(kQueuedOperations) {
    try {
      for (int i = 0; i < std::clamp(depth, 1, kMostThreads); ++i) {
        threads_.emplace_back([this] { work(); });
      }
    } catch (const std::system_error& error) {
      join();
      throw SystemError(std::string("cannot start a storage thread: ") + error.what());
    }
  }

  ~ThreadBlockIo() override { join(); }

  std::string_view name() const noexcept override { return "threads"; }

  void submit(std::span<const BlockOp> operations) override {
    for (const BlockOp& operation : operations) operations_.push(operation);
  }

  void wait(std::vector<BlockDone>& done, Nanoseconds most) override { done_.wait(done, most); }

  void wake() noexcept override { done_.wake(); }

 private:
  void work() {
    while (const auto operation = operations_.pop()) {
      const auto size = static_cast<std::size_t>(operation->bytes);
      const ssize_t moved = operation->write
                                ? pwrite(file_, operation->data, size, operation->offset)
                                : pread(file_, operation->data, size, operation->offset);
      const std::int64_t result = moved < 0 ? -errno : moved;
      done_.push({operation->tag, result});
    }
  }

  void join() {
    operations_.close();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  const int file_;
  Inbox<BlockOp> operations_;
  DoneQueue done_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockIo> make_thread_block_io(int file, int depth) {
  return std::make_unique<ThreadBlockIo>(file, depth);
}

}  // namespace hydra
