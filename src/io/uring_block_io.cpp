#include "io/uring_block_io.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "hydra/core/error.h"

namespace hydra {
namespace {

// How long to wait before a call is tried again that the kernel could not serve just now.
constexpr Nanoseconds kPause = std::chrono::microseconds(200);

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

bool passes(int error) {
  return error == EINTR || error == EAGAIN || error == EBUSY || error == ENOMEM;
}

/// A ring with the file registered.
///
/// The kernel takes entries in calls to io_uring_submit alone. So those that it has not taken are
/// known (`waiting_`), and once there are no more such calls they are ours again; those that it has
/// taken come back through the completion queue, which is memory and needs no call.
///
/// Waiting is a poll of the ring and of an eventfd, which unlike waiting in the ring submits
/// nothing and takes a time limit on every kernel.
class UringBlockIo final : public BlockIo {
 public:
  UringBlockIo(int file, int depth, UringFaults faults) : faults_(std::move(faults)) {
    const int made = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    if (made < 0) refuse("setting up a ring", -made);
    wake_file_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_file_ < 0) fail_setup("making an eventfd", errno);
    const int registered = io_uring_register_files(&ring_, &file, 1);
    if (registered < 0) fail_setup("registering the file", -registered);
  }

  ~UringBlockIo() override {
    io_uring_queue_exit(&ring_);
    close(wake_file_);
  }

  std::string_view name() const noexcept override { return "io_uring"; }

  void submit(std::span<const BlockOp> operations) override {
    refused_.reserve(refused_.size() + waiting_.size() + operations.size());
    for (const BlockOp& operation : operations) {
      if (!failure_.empty()) {
        refused_.push_back({operation.tag, -ESHUTDOWN});
      } else if (!enter(operation)) {
        refused_.push_back({operation.tag, -EAGAIN});
      }
    }
    start();
  }

  void wait(std::vector<BlockDone>& done, Nanoseconds most) override {
    const auto end = std::chrono::steady_clock::now() + most;
    for (;;) {
      start();
      if (take(done)) return;
      const Nanoseconds left = end - std::chrono::steady_clock::now();
      if (left <= Nanoseconds(0)) return;
      // With entries that the kernel did not take, or a ring that cannot be polled, look again
      // soon.
      const bool all_taken = waiting_.empty() && failure_.empty();
      if (poll_files(all_taken ? left : std::min(left, kPause))) {
        take(done);
        return;
      }
    }
  }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_file_, &one, sizeof one);
  }

  std::string failure() const override { return failure_; }

 private:
  [[noreturn]] void fail_setup(const char* what, int error) {
    io_uring_queue_exit(&ring_);
    if (wake_file_ >= 0) close(wake_file_);
    refuse(what, error);
  }

  /// Puts an operation into the ring; false when there is no room.
  bool enter(const BlockOp& operation) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      start();  // makes room
      if (!failure_.empty() || (entry = io_uring_get_sqe(&ring_)) == nullptr) return false;
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
    waiting_.push_back(operation.tag);
    return true;
  }

  // What the kernel cannot take now stays in the ring and goes with a later call.
  void start() {
    while (!waiting_.empty() && failure_.empty()) {
      int submitted = faults_.submit ? faults_.submit() : 0;
      if (submitted == 0) submitted = io_uring_submit(&ring_);
      if (submitted == -EINTR) continue;
      if (submitted == 0 || (submitted < 0 && passes(-submitted))) return;
      if (submitted < 0) {
        fail("submitting", -submitted);
        return;
      }
      const auto taken = std::min(static_cast<std::size_t>(submitted), waiting_.size());
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(taken));
    }
  }

  // From here on the kernel takes nothing, so what waits in the ring is given back.
  void fail(const char* what, int error) {
    if (!failure_.empty()) return;
    failure_ = std::string("io_uring failed in ") + what + ": " + system_message(error);
    for (const std::uint64_t tag : waiting_) refused_.push_back({tag, -ESHUTDOWN});
    waiting_.clear();
  }

  bool take(std::vector<BlockDone>& done) {
    const std::size_t before = done.size();
    done.insert(done.end(), refused_.begin(), refused_.end());
    refused_.clear();
    unsigned count = 0;
    unsigned head = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
      ++count;
      done.push_back({entry->user_data, entry->res});
    }
    io_uring_cq_advance(&ring_, count);
    return done.size() > before;
  }

  /// Waits for the ring or for `wake`; true when it was `wake`.
  bool poll_files(Nanoseconds most) {
    pollfd files[2] = {{wake_file_, POLLIN, 0}, {ring_.ring_fd, POLLIN, 0}};
    const timespec limit{static_cast<time_t>(most.count() / 1'000'000'000),
                         static_cast<long>(most.count() % 1'000'000'000)};
    const int planted = faults_.wait ? faults_.wait() : 0;
    const int ready = planted != 0 ? -1 : ppoll(files, failure_.empty() ? 2 : 1, &limit, nullptr);
    const int error = planted != 0 ? -planted : errno;
    if (ready < 0 && !passes(error)) fail("waiting", error);
    if (ready > 0 && (files[1].revents & (POLLERR | POLLNVAL)) != 0) fail("waiting", EBADF);
    const bool nothing_new = (files[1].revents & POLLIN) != 0 && io_uring_cq_ready(&ring_) == 0;
    if (ready < 0 || nothing_new) std::this_thread::sleep_for(std::min(most, kPause));
    std::uint64_t count = 0;
    const bool may_be_woken = ready < 0 || (files[0].revents & POLLIN) != 0;
    return may_be_woken && read(wake_file_, &count, sizeof count) > 0;
  }

  const UringFaults faults_;
  io_uring ring_{};
  int wake_file_ = -1;
  std::deque<std::uint64_t> waiting_;  // tags of entries that the kernel has not taken, in order
  std::vector<BlockDone> refused_;
  std::string failure_;
};

}  // namespace

std::unique_ptr<BlockIo> make_uring_block_io(int file, int depth, UringFaults faults) {
  return std::make_unique<UringBlockIo>(file, depth, std::move(faults));
}

std::unique_ptr<BlockIo> make_uring_block_io(int file, int depth) {
  return make_uring_block_io(file, depth, {});
}

}  // namespace hydra
