#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"
#include "hydra/core/ids.h"
#include "hydra/device/event.h"

namespace hydra {

class Device;

/// What a copy is called in a trace.
struct CopyNote {
  std::string name;       ///< "job-2 shard 3 parameters"; empty: its size
  std::int64_t flow = 0;  ///< starts the flow of this number, which its reader ends; 0: none
};

/// Operations on one device in the order in which they are given.
///
/// Lifetime: belongs to its device. Thread safety: thread-safe; the order between threads is the
/// order in which their calls return.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Copies `bytes` from `source` to `target` once everything before it in the stream is done.
  /// Both ranges stay untouched by others until the returned event, which carries this copy's own
  /// failure, has fired. A failed copy leaves `target` undefined; the stream goes on.
  virtual Event copy(void* target, const void* source, Bytes bytes, CopyNote note) = 0;
  Event copy(void* target, const void* source, Bytes bytes) {
    return copy(target, source, bytes, CopyNote());
  }
  /// Returns an event that fires when everything before it is done.
  virtual Event record() = 0;
  /// Holds the operations that follow until `event` has fired (whether or not with a failure).
  virtual void wait(const Event& event) = 0;
};

/// What a device has moved and held so far.
struct DeviceStats {
  Bytes in_use;       ///< handed out now
  Bytes peak_in_use;  ///< largest `in_use` so far
  Bytes held;         ///< in use and kept warm; never above the budget
  Bytes uploaded;     ///< host to device
  Bytes downloaded;   ///< device to host
  Nanoseconds upload_busy{0};
  Nanoseconds download_busy{0};
  Nanoseconds upload_hidden{0};       ///< of `upload_busy`, beside a task of the worker
  Nanoseconds download_hidden{0};     ///< of `download_busy`, likewise
  Nanoseconds compute_busy{0};        ///< the worker's time inside tasks, the present one included
  std::int64_t frees_under_copy = 0;  ///< of memory that a copy still touched, where watched
};

/// Bytes on a device; gives them back when it dies, on any thread.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, Bytes size);  ///< Errors: OutOfDeviceMemory.
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer() { release(); }

  std::byte* data() const noexcept { return data_; }
  Bytes size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return device_ != nullptr; }
  void release() noexcept;

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  Bytes size_;
};

/// Memory with a budget, one worker that computes, and a copy stream per direction.
///
/// The worker is the only thread that runs tasks on the device; while a task runs, the device is
/// `current_device()` of that thread. Copies run beside the worker.
/// Lifetime: outlives its buffers, streams and events in flight.
/// Thread safety: thread-safe unless said otherwise.
class Device {
 public:
  using Task = std::function<void()>;

  virtual ~Device() = default;

  virtual const std::string& name() const noexcept = 0;
  virtual Bytes budget() const noexcept = 0;

  /// Runs `task` on the worker after those submitted before it. The task must not throw.
  /// A call after `close` is refused with InternalError.
  virtual void submit(Task task) = 0;

  /// Host to device.
  virtual Stream& upload() noexcept = 0;
  /// Device to host.
  virtual Stream& download() noexcept = 0;
  /// The worker's own order. Confined to the worker: `record` marks what the running task has
  /// launched so far, `wait` holds what it launches next.
  virtual Stream& compute() noexcept = 0;

  /// Returns `bytes` (rounded up as `allocation_size` says), aligned to 64 bytes at least.
  /// Errors: OutOfDeviceMemory when in use + bytes would exceed the budget. `bytes` may be zero.
  virtual void* allocate(Bytes bytes) = 0;
  /// Takes back memory from `allocate`, with the same size.
  virtual void free(void* data, Bytes bytes) noexcept = 0;
  /// Returns what a request of `bytes` counts against the budget.
  virtual Bytes allocation_size(Bytes bytes) const noexcept = 0;
  /// Gives warm memory that is not in use back to the system.
  virtual void trim() noexcept = 0;

  virtual DeviceStats stats() const = 0;
  /// Sets `peak_in_use` to what is in use now.
  virtual void reset_peak() noexcept = 0;

  /// Runs what was submitted and copied, then stops the threads. Idempotent.
  virtual void close() noexcept = 0;
};

}  // namespace hydra
