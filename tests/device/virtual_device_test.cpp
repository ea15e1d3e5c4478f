#include "hydra/device/virtual_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/device/current_device.h"

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

class VirtualDeviceTest : public ::testing::TestWithParam<std::string> {
 protected:
  VirtualDevice device_{settings(GetParam())};
};

TEST_P(VirtualDeviceTest, ARequestBeyondTheBudgetIsATypedErrorAfterWhichTheDeviceWorksOn) {
  DeviceBuffer most(device_, Bytes(900 << 10));
  EXPECT_THROW(DeviceBuffer(device_, Bytes(200 << 10)), OutOfDeviceMemory);
  most.release();
  EXPECT_NO_THROW(DeviceBuffer(device_, Bytes(1 << 20)));
  EXPECT_EQ(device_.stats().in_use, Bytes(0));
}

TEST_P(VirtualDeviceTest, CopiesGoThereAndBack) {
  std::vector<int> from(10000, 42);
  std::vector<int> to(10000, 0);
  const Bytes size(static_cast<std::int64_t>(from.size() * sizeof(int)));
  DeviceBuffer buffer(device_, size);
  const Event up = device_.upload().copy(buffer.data(), from.data(), size);
  device_.download().wait(up);
  device_.download().copy(to.data(), buffer.data(), size).wait();
  EXPECT_EQ(from, to);
  EXPECT_EQ(device_.stats().uploaded, size);
  EXPECT_EQ(device_.stats().downloaded, size);
}

TEST_P(VirtualDeviceTest, AStreamKeepsItsOrder) {
  std::vector<char> a(1000, 'a');
  std::vector<char> b(1000, 'b');
  DeviceBuffer buffer(device_, Bytes(1000));
  for (int i = 0; i < 20; ++i) {
    device_.upload().copy(buffer.data(), a.data(), Bytes(1000));
    device_.upload().copy(buffer.data(), b.data(), Bytes(1000));
  }
  device_.upload().record().wait();
  EXPECT_EQ(std::memcmp(buffer.data(), b.data(), 1000), 0);
}

TEST_P(VirtualDeviceTest, TasksRunInOrderWithTheDeviceCurrent) {
  std::vector<int> order;
  std::promise<void> done;
  std::atomic<bool> current{true};
  for (int i = 0; i < 10; ++i) {
    device_.submit([&, i] {
      current = current && current_device() == &device_;
      order.push_back(i);
    });
  }
  device_.submit([&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_TRUE(current);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(current_device(), nullptr);
}

TEST_P(VirtualDeviceTest, AFailedCopyCarriesItsFailureAndTheStreamGoesOn) {
  char from = 'x';
  DeviceBuffer buffer(device_, Bytes(1));
  device_.fail_copy_after(0);
  const Event failed = device_.upload().copy(buffer.data(), &from, Bytes(1));
  EXPECT_THROW(failed.wait(), DeviceError);
  EXPECT_NO_THROW(device_.upload().copy(buffer.data(), &from, Bytes(1)).wait());
}

TEST_P(VirtualDeviceTest, CallbacksRunOnceBeforeAndAfterFiring) {
  std::atomic<int> calls{0};
  char from = 'x';
  DeviceBuffer buffer(device_, Bytes(1));
  const Event event = device_.upload().copy(buffer.data(), &from, Bytes(1));
  event.then([&] { ++calls; });
  event.wait();
  device_.upload().record().wait();
  event.then([&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST_P(VirtualDeviceTest, HeldNeverExceedsTheBudgetUnderRandomLoadsOfSeveralThreads) {
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([this, t] {
      SplitMix64 random(t);
      std::vector<DeviceBuffer> held;
      for (int i = 0; i < 600; ++i) {
        try {
          held.emplace_back(
              device_,
              Bytes(static_cast<std::int64_t>(random.below(random.below(2) == 0 ? 2000 : 200000))));
        } catch (const OutOfDeviceMemory&) {
          held.clear();
        }
        if (held.size() > 6) held.erase(held.begin());
        EXPECT_LE(device_.stats().held, device_.budget());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device_.stats().in_use, Bytes(0));
}

TEST_P(VirtualDeviceTest, ClosingRunsWhatWasSubmittedAndRefusesMore) {
  std::atomic<int> ran{0};
  for (int i = 0; i < 5; ++i) device_.submit([&] { ++ran; });
  device_.close();
  device_.close();
  EXPECT_EQ(ran, 5);
  EXPECT_THROW(device_.submit([] {}), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Settings, VirtualDeviceTest,
                         ::testing::Values("default", "throttled", "delayed", "poisoned"),
                         [](const auto& info) { return info.param; });

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

}  // namespace
}  // namespace hydra
