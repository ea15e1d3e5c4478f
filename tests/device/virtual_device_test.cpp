#include "hydra/device/virtual_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/mutex.h"
#include "hydra/core/random.h"
#include "hydra/core/trace.h"
#include "hydra/device/current_device.h"
#include "hydra/testing/device_conformance.h"
#include "hydra/testing/sweep.h"

namespace hydra {
namespace {

VirtualDeviceOptions settings(const std::string& kind) {
  VirtualDeviceOptions options;
  options.memory = Bytes(1 << 20);
  if (kind == "throttled") options.link_bytes_per_second = 200e6;
  if (kind == "delayed") {
    options.faults.delay_seed = 5;
    options.faults.largest_delay = std::chrono::microseconds(300);
  }
  if (kind == "poisoned") options.faults.poison_on_release = true;
  return options;
}

testing::DeviceKind kind(const std::string& name) {
  return {name, [name] { return std::make_unique<VirtualDevice>(settings(name)); },
          [](Device& device, std::int64_t n) {
            dynamic_cast<VirtualDevice&>(device).fail_copy_after(n);
          }};
}

}  // namespace

namespace testing {
INSTANTIATE_TEST_SUITE_P(VirtualDevices, DeviceConformanceTest,
                         ::testing::Values(kind("default"), kind("throttled"), kind("delayed"),
                                           kind("poisoned")),
                         kind_name);
}  // namespace testing

namespace {

VirtualDeviceOptions small_device() {
  VirtualDeviceOptions options;
  options.memory = Bytes(1 << 20);
  return options;
}

/// Counts spans; the names of tracks are the device's own.
class SpanSink final : public TraceSink {
 public:
  bool enabled() const noexcept override { return true; }
  void record(TraceEvent event) noexcept override {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
  }
  std::vector<TraceEvent> events() {
    MutexLock lock(mutex_);
    return events_;
  }

 private:
  Mutex mutex_;
  std::vector<TraceEvent> events_ HYDRA_GUARDED_BY(mutex_);
};

TEST(VirtualDeviceTest, RoundsSmallRequestsToSixtyFourBytesAndLargeOnesToPages) {
  const VirtualDevice device(small_device());
  EXPECT_EQ(device.allocation_size(Bytes(0)), Bytes(64));
  EXPECT_EQ(device.allocation_size(Bytes(1)), Bytes(64));
  EXPECT_EQ(device.allocation_size(Bytes(65)), Bytes(128));
  EXPECT_EQ(device.allocation_size(Bytes((16 << 10) - 1)), Bytes(16 << 10));
  EXPECT_EQ(device.allocation_size(Bytes((16 << 10) + 1)), Bytes(20 << 10));
}

TEST(VirtualDeviceTest, ABudgetThatIsNotWholePagesIsHonouredToTheByte) {
  VirtualDeviceOptions options;
  options.memory = Bytes((256 << 10) + 100);
  VirtualDevice device(options);
  SplitMix64 random(8);
  std::vector<DeviceBuffer> held;
  for (int round = 0; round < testing::sweep_rounds(3000); ++round) {
    const Bytes size(static_cast<std::int64_t>(random.below(random.below(2) == 0 ? 3000 : 90000)));
    const bool fits = device.stats().in_use + device.allocation_size(size) <= device.budget();
    try {
      held.emplace_back(device, size);
      EXPECT_TRUE(fits);
    } catch (const OutOfDeviceMemory&) {
      EXPECT_FALSE(fits);
      held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(held.size() / 2));
    }
    EXPECT_LE(device.stats().held, device.budget());
  }
}

TEST(VirtualDeviceTest, FreedMemoryIsPoisonedWhenAskedFor) {
  VirtualDeviceOptions options = small_device();
  options.faults.poison_on_release = true;
  VirtualDevice device(options);
  for (const std::int64_t size : {64, 100, 16 << 10, 300000}) {
    std::byte* data = nullptr;
    {
      const DeviceBuffer buffer(device, Bytes(size));
      data = buffer.data();
      std::memset(data, 1, static_cast<std::size_t>(size));
    }
    const DeviceBuffer again(device, Bytes(size));  // the same memory, still warm
    ASSERT_EQ(again.data(), data) << size;
    for (std::int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(std::to_integer<int>(again.data()[i]), 0xDB) << i << " of " << size;
    }
  }
}

TEST(VirtualDeviceTest, EveryPlantedAllocationFailureHitsThatAllocationAlone) {
  constexpr std::int64_t kAllocations = 8;
  for (std::int64_t failing = 0; failing <= kAllocations; ++failing) {
    VirtualDeviceOptions options = small_device();
    options.faults.fail_allocation = failing < kAllocations ? failing : -1;
    VirtualDevice device(options);
    std::vector<std::int64_t> failed;
    std::vector<DeviceBuffer> held;
    for (std::int64_t i = 0; i < kAllocations; ++i) {
      try {
        held.emplace_back(device, Bytes(i % 2 == 0 ? 100 : 30000));
      } catch (const OutOfDeviceMemory&) {
        failed.push_back(i);
      }
    }
    EXPECT_EQ(failed, failing < kAllocations ? std::vector{failing} : std::vector<std::int64_t>{});
    EXPECT_EQ(device.allocations(), kAllocations);
    held.clear();
    EXPECT_EQ(device.stats().in_use, Bytes(0));
  }
}

TEST(VirtualDeviceTest, APlantedFailureCanBeArmedAndDisarmedWhileItRuns) {
  VirtualDevice device(small_device());
  { const DeviceBuffer buffer(device, Bytes(1)); }
  device.fail_allocation_after(1);
  EXPECT_NO_THROW(DeviceBuffer(device, Bytes(1)));
  EXPECT_THROW(DeviceBuffer(device, Bytes(1)), OutOfDeviceMemory);
  EXPECT_NO_THROW(DeviceBuffer(device, Bytes(1)));
  device.fail_allocation_after(0);
  device.fail_allocation_after(-1);
  EXPECT_NO_THROW(DeviceBuffer(device, Bytes(1)));
}

TEST(VirtualDeviceTest, EveryPlantedCopyFailureHitsThatCopyAloneOfBothDirections) {
  constexpr std::int64_t kCopies = 6;
  for (std::int64_t failing = 0; failing <= kCopies; ++failing) {
    VirtualDeviceOptions options = small_device();
    options.faults.fail_copy = failing < kCopies ? failing : -1;
    VirtualDevice device(options);
    const DeviceBuffer buffer(device, Bytes(100));
    std::vector<std::byte> host(100);
    std::vector<std::int64_t> failed;
    for (std::int64_t i = 0; i < kCopies; ++i) {
      const Event event = i % 2 == 0
                              ? device.upload().copy(buffer.data(), host.data(), Bytes(100))
                              : device.download().copy(host.data(), buffer.data(), Bytes(100));
      try {
        event.wait();
      } catch (const DeviceError& error) {
        EXPECT_TRUE(error.retryable());
        failed.push_back(i);
      }
    }
    EXPECT_EQ(failed, failing < kCopies ? std::vector{failing} : std::vector<std::int64_t>{});
    EXPECT_EQ(device.copies(), kCopies);
  }
}

TEST(VirtualDeviceTest, CopiesThatFollowEachOtherShareTheLinkOfTheirDirection) {
  VirtualDeviceOptions options = small_device();
  options.link_bytes_per_second = 100e6;
  VirtualDevice device(options);
  std::vector<std::byte> host(500000);
  const DeviceBuffer buffer(device, Bytes(500000));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 4; ++i) device.upload().copy(buffer.data(), host.data(), Bytes(500000));
  device.upload().record().wait();
  // 20 ms on the link, less the 0.2 ms that an oversleep may be made up for.
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::microseconds(19800));
  EXPECT_GE(device.stats().upload_busy, std::chrono::microseconds(19000));
}

TEST(VirtualDeviceTest, LatencyIsAddedToEveryCopy) {
  VirtualDeviceOptions options = small_device();
  options.link_latency = std::chrono::milliseconds(3);
  VirtualDevice device(options);
  char from = 'x';
  const DeviceBuffer buffer(device, Bytes(1));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 4; ++i) device.upload().copy(buffer.data(), &from, Bytes(1));
  device.upload().record().wait();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::microseconds(11800));
}

TEST(VirtualDeviceTest, EveryCopyIsASpanOnTheTrackOfItsDirection) {
  SpanSink sink;
  const SteadyClock clock;
  VirtualDeviceOptions options = small_device();
  options.trace = &sink;
  options.clock = &clock;
  VirtualDevice device(options);
  std::vector<std::byte> host(2048);
  const DeviceBuffer buffer(device, Bytes(2048));
  device.upload().copy(buffer.data(), host.data(), Bytes(2048)).wait();
  device.download().copy(host.data(), buffer.data(), Bytes(1024)).wait();
  const auto events = sink.events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].track, "cpu0 upload");
  EXPECT_EQ(events[1].track, "cpu0 download");
  EXPECT_EQ(events[0].category, "copy");
  EXPECT_EQ(events[0].arguments.front(), std::pair(std::string("bytes"), std::string("2048")));
  EXPECT_EQ(events[1].arguments.front(), std::pair(std::string("bytes"), std::string("1024")));
  EXPECT_GE(events[1].start, events[0].start + events[0].duration);
  EXPECT_LE(events[1].start + events[1].duration, clock.now());
}

TEST(VirtualDeviceTest, TwoDevicesShareNothing) {
  VirtualDevice first(small_device());
  VirtualDevice second(small_device());
  const DeviceBuffer all(first, Bytes(1 << 20));
  EXPECT_NO_THROW(DeviceBuffer(second, Bytes(1 << 20)));
  std::promise<Device*> inside;
  second.submit([&] { inside.set_value(current_device()); });
  EXPECT_EQ(inside.get_future().get(), &second);
  EXPECT_EQ(second.stats().uploaded, Bytes(0));
}

TEST(ThrottledDeviceTest, ACopyTakesAtLeastItsTimeOnTheLink) {
  VirtualDeviceOptions options;
  options.memory = Bytes(4 << 20);
  options.link_bytes_per_second = 100e6;
  VirtualDevice device(options);
  std::vector<std::byte> from(2 << 20);
  DeviceBuffer buffer(device, Bytes(2 << 20));
  const auto start = std::chrono::steady_clock::now();
  device.upload().copy(buffer.data(), from.data(), Bytes(2 << 20)).wait();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
}

TEST(VirtualDeviceOptionsTest, ADeviceWithoutMemoryIsRefused) {
  EXPECT_THROW(VirtualDevice(VirtualDeviceOptions{}), InvalidArgument);
}

TEST(VirtualDeviceOptionsTest, ADeviceWithoutANameOrWithANegativeLinkIsRefused) {
  VirtualDeviceOptions options = small_device();
  options.name = "";
  EXPECT_THROW(VirtualDevice{options}, InvalidArgument);
  for (const double rate : {-1.0, std::nan("")}) {
    options = small_device();
    options.link_bytes_per_second = rate;
    EXPECT_THROW(VirtualDevice{options}, InvalidArgument) << rate;
  }
  options = small_device();
  options.link_latency = Nanoseconds(-1);
  EXPECT_THROW(VirtualDevice{options}, InvalidArgument);
}

TEST(ScopedCurrentDeviceTest, NestsAndBelongsToItsThread) {
  VirtualDevice outer(small_device());
  VirtualDevice inner(small_device());
  EXPECT_EQ(current_device(), nullptr);
  {
    const ScopedCurrentDevice first(&outer);
    EXPECT_EQ(current_device(), &outer);
    {
      const ScopedCurrentDevice second(&inner);
      EXPECT_EQ(current_device(), &inner);
      std::thread([] { EXPECT_EQ(current_device(), nullptr); }).join();
    }
    EXPECT_EQ(current_device(), &outer);
  }
  EXPECT_EQ(current_device(), nullptr);
}

TEST(VirtualDeviceTest, CopiesBesideATaskAreCountedAsHidden) {
  VirtualDevice device({.memory = Bytes(1 << 20), .link_latency = std::chrono::milliseconds(20)});
  std::byte host[64] = {};
  DeviceBuffer buffer(device, Bytes(64));
  device.upload().copy(buffer.data(), host, Bytes(64)).wait();  // alone
  EXPECT_EQ(device.stats().upload_hidden, Nanoseconds(0));
  std::promise<void> begun;
  device.submit([&begun] {
    begun.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  begun.get_future().wait();
  device.upload().copy(buffer.data(), host, Bytes(64)).wait();
  const DeviceStats stats = device.stats();
  EXPECT_GE(stats.upload_hidden, std::chrono::milliseconds(10));
  EXPECT_LE(stats.upload_hidden + std::chrono::milliseconds(15), stats.upload_busy);
  EXPECT_EQ(stats.download_hidden, Nanoseconds(0));
  buffer.release();
}

}  // namespace
}  // namespace hydra
