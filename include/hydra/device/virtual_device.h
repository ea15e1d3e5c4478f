#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"
#include "hydra/core/trace.h"
#include "hydra/device/device.h"

namespace hydra {

/// What a virtual device pretends to be.
struct VirtualDeviceOptions {
  std::string name = "cpu0";
  Bytes memory{};  ///< The enforced budget. Must be positive.

  /// Link rate per direction in bytes per second; 0 is as fast as memory is. Larger is faster.
  double link_bytes_per_second = 0;
  /// Added to every copy.
  Nanoseconds link_latency{0};

  /// Test settings.
  struct Faults {
    std::optional<std::uint64_t> delay_seed{};  ///< random stalls before copies and tasks
    Nanoseconds largest_delay{0};
    bool poison_on_release = false;     ///< freed bytes become 0xDB (NaN-like as floats)
    std::int64_t fail_allocation = -1;  ///< the n-th allocation from 0 on throws; -1 never
    std::int64_t fail_copy = -1;        ///< the n-th copy from 0 on fails; -1 never
    bool watch_frees = false;           ///< counts DeviceStats::frees_under_copy
  };
  Faults faults{};

  /// Receives a span per copy; both are borrowed, or null for no trace.
  TraceSink* trace = nullptr;
  const Clock* clock = nullptr;
};

/// A device made of CPU threads and host memory, for machines without a GPU and for tests.
///
/// The budget is enforced on everything: buffers, and whatever ATen allocates during a task.
/// Large requests are whole pages of a PagePool, small ones (below 16 KiB) are rounded to 64 bytes.
/// Streams and events behave as on a GPU: copies overlap with the worker and are ordered by events
/// alone.
/// Errors: InvalidArgument from the constructor, SystemError when a thread cannot start.
class VirtualDevice final : public Device {
 public:
  explicit VirtualDevice(VirtualDeviceOptions options);
  ~VirtualDevice() override;

  const std::string& name() const noexcept override;
  Bytes budget() const noexcept override;
  void submit(Task task) override;
  Stream& upload() noexcept override;
  Stream& download() noexcept override;
  Stream& compute() noexcept override;
  void* allocate(Bytes bytes) override;
  void free(void* data, Bytes bytes) noexcept override;
  Bytes allocation_size(Bytes bytes) const noexcept override;
  void trim() noexcept override;
  DeviceStats stats() const override;
  void reset_peak() noexcept override;
  void close() noexcept override;

  // Test settings that change while it runs: the n-th allocation or copy from now on fails, -1
  // disarms; and how many there have been.
  void fail_allocation_after(std::int64_t n) noexcept;
  void fail_copy_after(std::int64_t n) noexcept;
  std::int64_t allocations() const noexcept;
  std::int64_t copies() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
