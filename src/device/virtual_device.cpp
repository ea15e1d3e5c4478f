#include "hydra/device/virtual_device.h"

#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "device/copy_stream.h"
#include "device/device_heap.h"
#include "hydra/core/check.h"
#include "hydra/core/inbox.h"
#include "hydra/core/random.h"
#include "hydra/device/current_device.h"

namespace hydra {
namespace {

constexpr std::size_t kQueuedTasks = 1 << 16;

/// The worker's own order: what the running task does has been done when it is asked about.
class ComputeStream final : public Stream {
 public:
  using Stream::copy;
  Event copy(void* target, const void* source, Bytes bytes, CopyNote) override {
    std::memcpy(target, source, bytes.size());
    return Event();
  }
  Event record() override { return Event(); }
  void wait(const Event& event) override {
    try {
      event.wait();
    } catch (...) {  // a wait orders; the failure is the waited-for operation's own
    }
  }
};

void validate(const VirtualDeviceOptions& options) {
  if (options.name.empty()) throw InvalidArgument("a device needs a name");
  if (options.memory <= Bytes(0)) {
    throw InvalidArgument("device " + options.name + " has a memory of " +
                          to_string(options.memory) + ": it must be positive");
  }
  if (!(options.link_bytes_per_second >= 0) || options.link_latency < Nanoseconds(0)) {
    throw InvalidArgument("device " + options.name +
                          ": link rate and latency must not be negative");
  }
}

CopyStreamOptions stream_options(const VirtualDeviceOptions& options, const char* direction,
                                 std::uint64_t number, PlantedFailure& failure,
                                 PendingCopies& pending, const WorkerClock& worker) {
  CopyStreamOptions stream;
  stream.track = options.name + " " + direction;
  stream.bytes_per_second = options.link_bytes_per_second;
  stream.latency = options.link_latency;
  if (options.faults.delay_seed) stream.delay_seed = mix_seed(*options.faults.delay_seed, {number});
  stream.largest_delay = options.faults.largest_delay;
  stream.failure = &failure;
  if (options.faults.watch_frees) stream.pending = &pending;
  stream.worker = &worker;
  stream.trace = options.trace;
  stream.clock = options.clock;
  return stream;
}

}  // namespace

struct VirtualDevice::Impl {
  Impl(VirtualDevice& owner, VirtualDeviceOptions given)
      : options(std::move(given)),
        heap(options.name, options.memory, options.faults.poison_on_release),
        copy_failure(options.faults.fail_copy),
        upload(stream_options(options, "upload", 1, copy_failure, pending, worker_clock)),
        download(stream_options(options, "download", 2, copy_failure, pending, worker_clock)),
        tasks(kQueuedTasks) {
    if (options.faults.fail_allocation >= 0) heap.fail_after(options.faults.fail_allocation);
    if (options.faults.delay_seed) delays.emplace(mix_seed(*options.faults.delay_seed, {3}));
    try {
      worker = std::thread([this, &owner] { work(owner); });
    } catch (const std::system_error& error) {
      throw SystemError("cannot start the worker of device " + options.name + ": " + error.what());
    }
  }

  void work(VirtualDevice& owner) {
    const ScopedCurrentDevice current(&owner);
    while (auto task = tasks.pop()) {
      if (delays && options.faults.largest_delay > Nanoseconds(0)) {
        std::this_thread::sleep_for(Nanoseconds(static_cast<std::int64_t>(
            delays->below(static_cast<std::uint64_t>(options.faults.largest_delay.count())))));
      }
      worker_clock.begin();
      (*task)();
      task.reset();  // what it captured may own device memory
      worker_clock.end();
    }
  }

  const VirtualDeviceOptions options;
  DeviceHeap heap;
  PlantedFailure copy_failure;
  PendingCopies pending;
  std::atomic<std::int64_t> frees_under_copy{0};
  WorkerClock worker_clock;
  CopyStream upload;
  CopyStream download;
  ComputeStream compute;
  Inbox<Task> tasks;
  std::optional<SplitMix64> delays;
  std::thread worker;
};

VirtualDevice::VirtualDevice(VirtualDeviceOptions options) {
  validate(options);
  impl_ = std::make_unique<Impl>(*this, std::move(options));
}

VirtualDevice::~VirtualDevice() { close(); }

const std::string& VirtualDevice::name() const noexcept { return impl_->options.name; }

Bytes VirtualDevice::budget() const noexcept { return impl_->options.memory; }

void VirtualDevice::submit(Task task) {
  const bool accepted = impl_->tasks.push(std::move(task));
  HYDRA_CHECK(accepted, "device " + name() + " is closed");
}

Stream& VirtualDevice::upload() noexcept { return impl_->upload; }

Stream& VirtualDevice::download() noexcept { return impl_->download; }

Stream& VirtualDevice::compute() noexcept { return impl_->compute; }

void* VirtualDevice::allocate(Bytes bytes) { return impl_->heap.allocate(bytes); }

void VirtualDevice::free(void* data, Bytes bytes) noexcept {
  if (impl_->options.faults.watch_frees && impl_->pending.touch(data, bytes)) {
    ++impl_->frees_under_copy;
  }
  impl_->heap.free(data, bytes);
}

Bytes VirtualDevice::allocation_size(Bytes bytes) const noexcept {
  return DeviceHeap::rounded(bytes);
}

void VirtualDevice::trim() noexcept { impl_->heap.trim(); }

DeviceStats VirtualDevice::stats() const {
  DeviceStats stats;
  stats.in_use = impl_->heap.in_use();
  stats.peak_in_use = impl_->heap.peak();
  stats.held = impl_->heap.held();
  stats.uploaded = impl_->upload.bytes_copied();
  stats.downloaded = impl_->download.bytes_copied();
  stats.upload_busy = impl_->upload.busy();
  stats.download_busy = impl_->download.busy();
  stats.frees_under_copy = impl_->frees_under_copy;
  stats.upload_hidden = impl_->upload.hidden();
  stats.download_hidden = impl_->download.hidden();
  stats.compute_busy = impl_->worker_clock.total();
  return stats;
}

void VirtualDevice::reset_peak() noexcept { impl_->heap.reset_peak(); }

void VirtualDevice::close() noexcept {
  impl_->tasks.close();
  if (impl_->worker.joinable()) impl_->worker.join();
  impl_->upload.close();
  impl_->download.close();
}

void VirtualDevice::fail_allocation_after(std::int64_t n) noexcept { impl_->heap.fail_after(n); }

void VirtualDevice::fail_copy_after(std::int64_t n) noexcept { impl_->copy_failure.after(n); }

std::int64_t VirtualDevice::allocations() const noexcept { return impl_->heap.allocations(); }

std::int64_t VirtualDevice::copies() const noexcept { return impl_->copy_failure.count(); }

}  // namespace hydra
