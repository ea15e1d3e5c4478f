#include "io/drive_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <system_error>
#include <utility>

#include "hydra/core/error.h"
#include "hydra/io/crc32c.h"
#include "hydra/io/extent_map.h"

namespace hydra {
namespace {

// Transfers that move nothing, or are told to try again, are tried this often.
constexpr int kMostAttempts = 32;
// Between two tries to wait for an interface that throws.
constexpr Nanoseconds kPause = std::chrono::milliseconds(10);

std::string rounded(Nanoseconds time) {
  std::ostringstream text;
  text << std::setprecision(3) << seconds(time) << " s";
  return text.str();
}

std::span<const std::byte> bytes_of(const BlockTask& task) {
  return {task.data, static_cast<std::size_t>(task.bytes)};
}

}  // namespace

void ExtentRequest::fail(std::exception_ptr cause) {
  MutexLock lock(mutex_);
  if (failure_ == nullptr) failure_ = std::move(cause);
}

std::exception_ptr ExtentRequest::take_failure() {
  MutexLock lock(mutex_);
  return std::exchange(failure_, nullptr);
}

DriveQueue::DriveQueue(std::unique_ptr<BlockIo> io, Options options)
    : io_(std::move(io)),
      options_(std::move(options)),
      silence_limit_(options_.warn_after),
      next_look_(std::chrono::steady_clock::now() + silence_limit_),
      metered_(std::chrono::steady_clock::now()) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw SystemError("cannot start the thread of " + options_.name + ": " + error.what());
  }
}

DriveQueue::~DriveQueue() { close(); }

void DriveQueue::push(std::vector<BlockTask> tasks) {
  {
    MutexLock lock(mutex_);
    for (BlockTask& task : tasks) {
      const std::int64_t priority = task.request->priority;
      waiting_.emplace(priority, std::move(task));
    }
  }
  work_.notify_one();
  io_->wake();
}

void DriveQueue::reorder() {
  MutexLock lock(mutex_);
  Waiting reordered;
  for (auto& [old, task] : waiting_) {
    const std::int64_t priority = task.request->priority;
    reordered.emplace(priority, std::move(task));
  }
  waiting_ = std::move(reordered);
}

void DriveQueue::close() noexcept {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  work_.notify_one();
  io_->wake();
  if (thread_.joinable()) thread_.join();
}

void DriveQueue::run() noexcept {
  std::vector<BlockTask> tasks;
  while (take_waiting(tasks)) {
    for (BlockTask& task : tasks) start(std::move(task));
    tasks.clear();
    if (running_.empty()) continue;
    wait();
    for (const BlockDone& end : done_) take_in(end);
    done_.clear();
    name_silence(std::chrono::steady_clock::now());
  }
}

// Whatever happens to the waiting, what is in flight stays so until its completion has come: its
// memory is the system's.
void DriveQueue::wait() {
  const auto left = next_look_ - std::chrono::steady_clock::now();
  try {
    io_->wait(done_, std::max<Nanoseconds>(left, Nanoseconds(0)));
  } catch (const std::exception& error) {
    retire(error.what());
    std::this_thread::sleep_for(kPause);
  }
  if (std::string failure = io_->failure(); !failure.empty()) retire(failure);
}

void DriveQueue::retire(const std::string& cause) {
  if (retired_) return;
  cause_ = cause;
  retired_ = true;
  options_.log->log(LogLevel::kError, "the drive of " + options_.name + " is retired: " + cause_ +
                                          "; what it holds is lost to this run");
}

// A transfer's age counts, not the drive's last answer: one that hangs among others that pass is
// as lost as all of them. Nothing is looked at before one can be old enough.
void DriveQueue::name_silence(Time now) {
  if (now < next_look_) return;
  const Running* oldest = nullptr;
  for (const auto& [tag, running] : running_) {
    if (oldest == nullptr || running.begun < oldest->begun) oldest = &running;
  }
  if (oldest == nullptr || now - oldest->begun < options_.warn_after) {
    silence_limit_ = options_.warn_after;
  }
  if (oldest == nullptr || now - oldest->begun < silence_limit_) {
    next_look_ = (oldest == nullptr ? now : oldest->begun) + silence_limit_;
    return;
  }
  const Nanoseconds age = now - oldest->begun;
  options_.log->log(LogLevel::kWarning,
                    "the drive of " + options_.name + " has not answered for " + rounded(age) +
                        ": " + std::to_string(running_.size()) + " transfers are in flight, the " +
                        "oldest " + (oldest->task.request->write ? "writes " : "reads ") +
                        place(*oldest) + ", and " + std::to_string(waiting()) +
                        " more wait: check the drive and its connection; they are waited for");
  silence_limit_ = 2 * age;
  next_look_ = oldest->begun + silence_limit_;
}

std::size_t DriveQueue::waiting() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

// Returns false once everything has been done and there will be no more.
bool DriveQueue::take_waiting(std::vector<BlockTask>& tasks) {
  MutexLock lock(mutex_);
  while (waiting_.empty() && running_.empty()) {
    if (closed_) return false;
    work_.wait(mutex_);
  }
  std::size_t room = static_cast<std::size_t>(options_.depth) - running_.size();
  for (; room > 0 && !waiting_.empty(); --room) {
    tasks.push_back(std::move(waiting_.begin()->second));
    waiting_.erase(waiting_.begin());
  }
  return true;
}

void DriveQueue::start(BlockTask task) {
  if (task.request->write) *task.check = crc32c(bytes_of(task));
  meter(task.request->write, +1, 0);
  const std::uint64_t tag = next_tag_++;
  Running& running =
      running_.emplace(tag, Running{std::move(task), std::chrono::steady_clock::now()})
          .first->second;
  resume(tag, running);
}

void DriveQueue::resume(std::uint64_t tag, Running& running) {
  if (retired_) {
    end(tag, retirement(running));
    return;
  }
  const BlockTask& task = running.task;
  const BlockOp operation{task.request->write, task.offset + running.moved,
                          task.data + running.moved, task.bytes - running.moved, tag};
  try {
    io_->submit({&operation, 1});
  } catch (const std::exception& error) {
    retire(error.what());
    end(tag, retirement(running));
  }
}

// O_DIRECT goes on at multiples of the alignment alone, so part of a short transfer is done again.
void DriveQueue::take_in(const BlockDone& done) {
  const auto found = running_.find(done.tag);
  if (found == running_.end()) return;
  Running& running = found->second;
  const bool again = done.result == -EINTR || done.result == -EAGAIN;
  if (done.result < 0 && retired_) {
    end(done.tag, retirement(running));
    return;
  }
  if (done.result < 0 && !again) {
    end(done.tag, transfer_failure(running, done.result));
    return;
  }
  const std::int64_t gained =
      std::max<std::int64_t>(done.result, 0) / kExtentAlignment * kExtentAlignment;
  running.moved += gained;
  if (running.moved == running.task.bytes) {
    end(done.tag, check(running));
    return;
  }
  running.attempts = gained > 0 ? 0 : running.attempts + 1;
  if (running.attempts == kMostAttempts) {
    end(done.tag, transfer_failure(running, done.result));
    return;
  }
  resume(done.tag, running);
}

void DriveQueue::end(std::uint64_t tag, std::exception_ptr failure) {
  const auto found = running_.find(tag);
  const BlockTask task = std::move(found->second.task);
  running_.erase(found);
  meter(task.request->write, -1, failure == nullptr ? task.bytes : 0);
  if (failure != nullptr) task.request->fail(std::move(failure));
  if (--task.request->blocks_left == 0) task.request->on_end(*task.request);
}

std::exception_ptr DriveQueue::check(const Running& running) const {
  const BlockTask& task = running.task;
  if (task.request->write) return nullptr;
  const std::uint32_t found = crc32c(bytes_of(task));
  if (found == *task.check) return nullptr;
  return std::make_exception_ptr(CorruptionError(
      place(running) + " came back other than it was written (CRC-32C " + std::to_string(found) +
      " instead of " + std::to_string(*task.check) +
      "): check the drive and its cable, and start again from the last checkpoint"));
}

std::exception_ptr DriveQueue::transfer_failure(const Running& running, std::int64_t result) const {
  const bool write = running.task.request->write;
  const std::string what = std::string(write ? "writing " : "reading ") + place(running);
  if (result >= 0) {
    return std::make_exception_ptr(StorageError(
        false, what + " moves nothing beyond " + std::to_string(running.moved) + " of " +
                   std::to_string(running.task.bytes) + " bytes: is the file still whole?"));
  }
  const int error = static_cast<int>(-result);
  return std::make_exception_ptr(
      StorageError(error == EINTR || error == EAGAIN, what + " failed: " + system_message(error)));
}

std::exception_ptr DriveQueue::retirement(const Running& running) const {
  const bool write = running.task.request->write;
  return std::make_exception_ptr(
      StorageError(false, std::string(write ? "writing " : "reading ") + place(running) +
                              " is refused: the drive is retired (" + cause_ +
                              "): mend it or name another drive, and start again"));
}

std::string DriveQueue::place(const Running& running) const {
  return running.task.request->label + ", " + std::to_string(running.task.bytes) +
         " bytes at offset " + std::to_string(running.task.offset) + " of " + options_.name;
}

void DriveQueue::meter(bool write, int change, std::int64_t bytes) {
  MutexLock lock(mutex_);
  pass_time();
  Meter& own = meters_[write ? 1 : 0];
  own.in_flight += change;
  own.bytes += bytes;
}

void DriveQueue::pass_time() {
  const auto now = std::chrono::steady_clock::now();
  const double passed = std::chrono::duration<double>(now - metered_).count();
  metered_ = now;
  for (Meter& each : meters_) {
    if (each.in_flight > 0) each.busy_seconds += passed;
    each.depth_seconds += passed * each.in_flight;
  }
  if (meters_[0].in_flight > 0 && meters_[1].in_flight > 0) both_seconds_ += passed;
}

IoStats DriveQueue::stats_of(const Meter& meter) const {
  IoStats stats;
  stats.bytes = Bytes(meter.bytes);
  stats.busy = Nanoseconds(static_cast<std::int64_t>(meter.busy_seconds * 1e9));
  stats.mean_depth = meter.busy_seconds > 0 ? meter.depth_seconds / meter.busy_seconds : 0;
  return stats;
}

IoStats DriveQueue::stats(bool write) const {
  MutexLock lock(mutex_);
  return stats_of(meters_[write ? 1 : 0]);
}

DriveStats DriveQueue::stats() const {
  MutexLock lock(mutex_);
  DriveStats stats;
  stats.directory = options_.name;
  stats.written = stats_of(meters_[1]);
  stats.read = stats_of(meters_[0]);
  stats.both = Nanoseconds(static_cast<std::int64_t>(both_seconds_ * 1e9));
  stats.in_flight = meters_[0].in_flight + meters_[1].in_flight;
  return stats;
}

}  // namespace hydra
