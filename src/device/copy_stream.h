#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/worker_clock.h"
#include "hydra/core/clock.h"
#include "hydra/core/inbox.h"
#include "hydra/core/mutex.h"
#include "hydra/core/random.h"
#include "hydra/core/trace.h"
#include "hydra/device/device.h"

namespace hydra {

/// The n-th of something fails; shared by a device's streams.
class PlantedFailure {
 public:
  explicit PlantedFailure(std::int64_t n) : fail_at_(n) {}
  /// Counts one more; true when it is the one that fails.
  bool due() noexcept { return count_++ == fail_at_.load(); }
  void after(std::int64_t n) noexcept { fail_at_ = n < 0 ? -1 : count_.load() + n; }
  std::int64_t count() const noexcept { return count_; }

 private:
  std::atomic<std::int64_t> count_{0};
  std::atomic<std::int64_t> fail_at_;
};

/// The memory that queued copies of a device touch.
class PendingCopies {
 public:
  void add(const void* target, const void* source, Bytes bytes);
  void remove(const void* target, const void* source, Bytes bytes);
  bool touch(const void* data, Bytes bytes) const;

 private:
  struct Range {
    const std::byte* begin;
    std::size_t size;
    friend bool operator==(const Range&, const Range&) = default;
  };
  mutable Mutex mutex_;
  std::vector<Range> ranges_ HYDRA_GUARDED_BY(mutex_);
};

/// What a copy stream pretends to be.
struct CopyStreamOptions {
  std::string track;  ///< of the trace
  double bytes_per_second = 0;
  Nanoseconds latency{0};
  std::optional<std::uint64_t> delay_seed;
  Nanoseconds largest_delay{0};
  PlantedFailure* failure = nullptr;
  PendingCopies* pending = nullptr;     ///< null: nobody asks
  const WorkerClock* worker = nullptr;  ///< of the device that the copies run beside
  TraceSink* trace = nullptr;
  const Clock* clock = nullptr;
};

/// One direction of a virtual device's link: a thread that copies in stream order.
class CopyStream final : public Stream {
 public:
  explicit CopyStream(CopyStreamOptions options);
  ~CopyStream() override { close(); }

  using Stream::copy;
  Event copy(void* target, const void* source, Bytes bytes, CopyNote note) override;
  Event record() override;
  void wait(const Event& event) override;

  Bytes bytes_copied() const noexcept { return Bytes(bytes_copied_.load()); }
  Nanoseconds busy() const noexcept { return Nanoseconds(busy_ns_.load()); }
  /// Of `busy`, how long the worker was inside a task meanwhile.
  Nanoseconds hidden() const noexcept { return Nanoseconds(hidden_ns_.load()); }
  /// Finishes what was given, then stops the thread. Idempotent.
  void close() noexcept;

 private:
  struct Operation {
    enum class Kind { kCopy, kRecord, kWait };
    Kind kind = Kind::kRecord;
    Event event;  ///< fired when done, or waited for
    void* target = nullptr;
    const void* source = nullptr;
    Bytes bytes;
    CopyNote note;
  };

  void run();
  void give(Operation operation);
  void perform_copy(const Operation& copy);
  void stall();
  void trace(const Operation& copy, Nanoseconds start, Nanoseconds taken);
  void hold_link(std::chrono::steady_clock::time_point start, Bytes bytes);

  const CopyStreamOptions options_;
  Inbox<Operation> inbox_;
  std::optional<SplitMix64> delays_;
  std::chrono::steady_clock::time_point link_free_{};
  std::atomic<std::int64_t> bytes_copied_{0};
  std::atomic<std::int64_t> busy_ns_{0};
  std::atomic<std::int64_t> hidden_ns_{0};
  std::thread thread_;
};

}  // namespace hydra
