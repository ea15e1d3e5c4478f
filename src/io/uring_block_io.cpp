#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "hydra/core/error.h"
#include "hydra/io/block_io.h"

namespace hydra {
namespace {

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};

std::string cause_of(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return " (a seccomp filter or kernel.io_uring_disabled forbids it)";
    case ENOSYS:
      return " (the kernel has none)";
    case ENOMEM:
      return " (the limit of locked memory is too low: raise ulimit -l)";
    default:
      return "";
  }
}

[[noreturn]] void refuse(const char* what, int error) {
  throw StorageError(false, std::string("io_uring is refused: ") + what + ": " +
                                system_message(error) + cause_of(error));
}

/// A ring with the file registered, and an eventfd among its reads so that `wake` can end a wait.
class UringBlockIo final : public BlockIo {
 public:
  UringBlockIo(int file, int depth) {
    const int made = io_uring_queue_init(static_cast<unsigned>(depth + 1), &ring_, 0);
    if (made < 0) refuse("setting up a ring", -made);
    wake_file_ = eventfd(0, EFD_CLOEXEC);
    if (wake_file_ < 0) fail_setup("making an eventfd", errno);
    const int registered = io_uring_register_files(&ring_, &file, 1);
    if (registered < 0) fail_setup("registering the file", -registered);
    arm_wake();
    start();
  }

  // Closing the ring cancels the read of the eventfd; everything else has come back.
  ~UringBlockIo() override {
    io_uring_queue_exit(&ring_);
    close(wake_file_);
  }

  std::string_view name() const noexcept override { return "io_uring"; }

  void submit(std::span<const BlockOp> operations) override {
    for (const BlockOp& operation : operations) {
      io_uring_sqe* entry = next_entry();
      if (entry == nullptr) {
        refused_.push_back({operation.tag, -EAGAIN});
        continue;
      }
      const auto bytes = static_cast<unsigned>(operation.bytes);
      const auto offset = static_cast<std::uint64_t>(operation.offset);
      if (operation.write) {
        io_uring_prep_write(entry, 0, operation.data, bytes, offset);
      } else {
        io_uring_prep_read(entry, 0, operation.data, bytes, offset);
      }
      io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
      io_uring_sqe_set_data64(entry, operation.tag);
    }
    start();
  }

  void wait(std::vector<BlockDone>& done) override {
    if (!refused_.empty()) {
      done.insert(done.end(), refused_.begin(), refused_.end());
      refused_.clear();
      return;
    }
    io_uring_cqe* first = nullptr;
    while (io_uring_wait_cqe(&ring_, &first) == -EINTR) {
    }
    bool woken = false;
    unsigned count = 0;
    unsigned head = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
      ++count;
      if (entry->user_data == kWakeTag) {
        woken = true;
      } else {
        done.push_back({entry->user_data, entry->res});
      }
    }
    io_uring_cq_advance(&ring_, count);
    if (woken) {
      arm_wake();
      start();
    }
  }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_file_, &one, sizeof one);
  }

 private:
  [[noreturn]] void fail_setup(const char* what, int error) {
    io_uring_queue_exit(&ring_);
    if (wake_file_ >= 0) close(wake_file_);
    refuse(what, error);
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry != nullptr) return entry;
    start();  // makes room
    return io_uring_get_sqe(&ring_);
  }

  void arm_wake() {
    io_uring_sqe* entry = next_entry();
    if (entry == nullptr) return;
    io_uring_prep_read(entry, wake_file_, &wake_count_, sizeof wake_count_, 0);
    io_uring_sqe_set_data64(entry, kWakeTag);
  }

  // What the kernel does not take now stays in the ring and goes with the next call.
  void start() {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted >= 0 || submitted == -EINTR) continue;
      if (submitted == -EAGAIN || submitted == -EBUSY) {
        usleep(100);
        continue;
      }
      throw StorageError(false,
                         std::string("io_uring took no work: ") + system_message(-submitted));
    }
  }

  io_uring ring_{};
  int wake_file_ = -1;
  std::uint64_t wake_count_ = 0;
  std::vector<BlockDone> refused_;
};

}  // namespace

std::unique_ptr<BlockIo> make_uring_block_io(int file, int depth) {
  return std::make_unique<UringBlockIo>(file, depth);
}

}  // namespace hydra
