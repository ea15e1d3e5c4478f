#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "hydra/core/mutex.h"
#include "hydra/io/block_io.h"
#include "hydra/io/extent_store.h"

namespace hydra {

/// A read or write of a whole extent, on as many drives as it lies on.
struct ExtentRequest {
  ExtentStore::RequestId id = 0;
  bool write = false;
  std::string label;
  std::atomic<std::int64_t> priority{0};
  std::atomic<std::int64_t> blocks_left{0};
  std::function<void(ExtentRequest&)> on_end;  ///< by the drive that ends the last block
  Nanoseconds begun{0};

  /// The first failure wins.
  void fail(std::exception_ptr cause);
  /// Hands the failure over: whoever takes it is the last to let it go.
  std::exception_ptr take_failure();

 private:
  Mutex mutex_;
  std::exception_ptr failure_ HYDRA_GUARDED_BY(mutex_);
};

/// One block of a request.
struct BlockTask {
  std::shared_ptr<ExtentRequest> request;
  std::int64_t offset = 0;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;          ///< a multiple of kExtentAlignment
  std::uint32_t* check = nullptr;  ///< the block's CRC-32C: set by writes, compared by reads
};

/// Sends blocks to one drive, the most urgent first, with as many in flight as the drive takes.
///
/// One thread owns the drive's BlockIo and what is in flight as plain data.
/// Thread safety: thread-safe.
class DriveQueue {
 public:
  struct Options {
    std::string name;                                  ///< of the drive, in messages
    int depth = 1;                                     ///< transfers in flight
    Nanoseconds warn_after{std::chrono::seconds(60)};  ///< see ExtentStoreOptions
    LogSink* log = nullptr;                            ///< borrowed
  };

  DriveQueue(std::unique_ptr<BlockIo> io, Options options);
  ~DriveQueue();

  void push(std::vector<BlockTask> tasks);
  /// Looks at the priorities of what waits once more.
  void reorder();
  IoStats stats(bool write) const;
  DriveStats stats() const;
  std::string_view backend() const { return io_->name(); }
  /// True once the drive's interface has failed for good: every block then ends as failed.
  bool retired() const noexcept { return retired_; }
  /// Finishes what was pushed, then stops the thread. Idempotent.
  void close() noexcept;

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Running {
    BlockTask task;
    Time begun;
    std::int64_t moved = 0;
    int attempts = 0;  ///< without progress
  };
  struct Meter {
    std::int64_t bytes = 0;
    int in_flight = 0;
    double busy_seconds = 0;
    double depth_seconds = 0;
  };
  using Waiting = std::multimap<std::int64_t, BlockTask>;  // by priority, then by age

  void run() noexcept;
  bool take_waiting(std::vector<BlockTask>& tasks);
  void start(BlockTask task);
  void resume(std::uint64_t tag, Running& running);
  void wait();
  void take_in(const BlockDone& done);
  void retire(const std::string& cause);
  void name_silence(Time now);
  std::size_t waiting() const;
  void end(std::uint64_t tag, std::exception_ptr failure);
  std::exception_ptr check(const Running& running) const;
  std::exception_ptr transfer_failure(const Running& running, std::int64_t result) const;
  std::exception_ptr retirement(const Running& running) const;
  std::string place(const Running& running) const;
  void meter(bool write, int change, std::int64_t bytes);
  void pass_time() HYDRA_REQUIRES(mutex_);
  IoStats stats_of(const Meter& meter) const;

  const std::unique_ptr<BlockIo> io_;
  const Options options_;

  // The thread's own.
  std::unordered_map<std::uint64_t, Running> running_;
  std::uint64_t next_tag_ = 0;
  std::vector<BlockDone> done_;
  std::string cause_;          // of the retirement
  Nanoseconds silence_limit_;  // a transfer older than this is named; grows while it lasts
  Time next_look_;             // when the oldest transfer may have reached it
  std::atomic<bool> retired_{false};

  mutable Mutex mutex_;
  ConditionVariable work_;
  Waiting waiting_ HYDRA_GUARDED_BY(mutex_);
  bool closed_ HYDRA_GUARDED_BY(mutex_) = false;
  Meter meters_[2] HYDRA_GUARDED_BY(mutex_);
  double both_seconds_ HYDRA_GUARDED_BY(mutex_) = 0;
  Time metered_ HYDRA_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace hydra
