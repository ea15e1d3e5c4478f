#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/device/current_device.h"
#include "hydra/device/device.h"

namespace hydra::testing {

/// A kind of device that is held to the contract of `hydra::Device`.
struct DeviceKind {
  std::string name;  ///< letters and digits alone: it becomes part of the tests' names
  /// Makes a device with a budget of 1 MiB. Called by each test once.
  std::function<std::unique_ptr<Device>()> make;
  /// Makes the n-th copy from now on fail; null when the device cannot be made to.
  std::function<void(Device&, std::int64_t)> fail_copy_after;
};

inline void PrintTo(const DeviceKind& kind, std::ostream* out) { *out << kind.name; }

/// What every device does. A folder's test instantiates it:
/// `INSTANTIATE_TEST_SUITE_P(Kinds, DeviceConformanceTest, ::testing::Values(...), kind_name);`
class DeviceConformanceTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  using Memory = std::vector<std::uint8_t>;

  static constexpr Bytes kBudget{1 << 20};

  static Memory pattern(Bytes size, std::uint64_t seed) {
    SplitMix64 random(seed);
    Memory memory(size.size());
    for (std::uint8_t& byte : memory) byte = static_cast<std::uint8_t>(random.next());
    return memory;
  }

  Event up(const DeviceBuffer& target, const Memory& source) {
    return device().upload().copy(target.data(), source.data(),
                                  Bytes(static_cast<std::int64_t>(source.size())));
  }
  Event down(Memory& target, const DeviceBuffer& source) {
    return device().download().copy(target.data(), source.data(),
                                    Bytes(static_cast<std::int64_t>(target.size())));
  }

  /// Waits until everything that was submitted so far has run.
  void drain_worker() {
    std::promise<void> done;
    device().submit([&] { done.set_value(); });
    done.get_future().wait();
  }

  Device& device() { return *device_; }

 private:
  std::unique_ptr<Device> device_ = GetParam().make();
};

inline std::string kind_name(const ::testing::TestParamInfo<DeviceKind>& info) {
  return info.param.name;
}

// Memory.

TEST_P(DeviceConformanceTest, CountsWhatARequestIsSaidToCount) {
  for (const std::int64_t size : {0, 1, 63, 64, 65, 4096, 16383, 16384, 16385, 200000}) {
    const Bytes counted = device().allocation_size(Bytes(size));
    EXPECT_GE(counted, Bytes(size));
    EXPECT_EQ(device().allocation_size(counted), counted) << size;
    const DeviceBuffer buffer(device(), Bytes(size));
    EXPECT_EQ(buffer.size(), Bytes(size));
    EXPECT_EQ(device().stats().in_use, counted) << size;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
  }
  EXPECT_EQ(device().stats().in_use, Bytes(0));
}

TEST_P(DeviceConformanceTest, TheWholeBudgetCanBeHadAndNotOneByteMore) {
  DeviceBuffer all(device(), kBudget);
  EXPECT_EQ(device().stats().in_use, device().budget());
  EXPECT_THROW(DeviceBuffer(device(), Bytes(1)), OutOfDeviceMemory);
  all.release();
  EXPECT_THROW(DeviceBuffer(device(), kBudget + Bytes(1)), OutOfDeviceMemory);
  EXPECT_THROW(DeviceBuffer(device(), Bytes(INT64_MAX)), OutOfDeviceMemory);
  EXPECT_EQ(device().stats().in_use, Bytes(0));
  EXPECT_NO_THROW(DeviceBuffer(device(), kBudget));
}

TEST_P(DeviceConformanceTest, ARefusalCarriesItsNumbersAndLosesNothing) {
  const DeviceBuffer held(device(), Bytes(700 << 10));
  try {
    DeviceBuffer refused(device(), Bytes(400 << 10));
    FAIL() << "nothing was thrown";
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_EQ(error.requested(), Bytes(400 << 10));
    EXPECT_EQ(error.in_use(), Bytes(700 << 10));
    EXPECT_EQ(error.budget(), kBudget);
    EXPECT_NE(std::string(error.what()).find(device().name()), std::string::npos);
  }
  EXPECT_EQ(device().stats().in_use, Bytes(700 << 10));
  EXPECT_NO_THROW(DeviceBuffer(device(), Bytes(300 << 10)));
}

TEST_P(DeviceConformanceTest, FreeMemoryOfAnySizesServesALargeRequest) {
  std::vector<DeviceBuffer> small;
  for (int i = 0; i < 64; ++i) small.emplace_back(device(), Bytes(16 << 10));
  for (std::size_t i = 0; i < small.size(); i += 2) small[i].release();  // fragments
  EXPECT_NO_THROW(DeviceBuffer(device(), Bytes(512 << 10)));
  small.clear();
  for (int i = 0; i < 1000; ++i) small.emplace_back(device(), Bytes(1000));
  small.clear();
  EXPECT_NO_THROW(DeviceBuffer(device(), kBudget));
}

TEST_P(DeviceConformanceTest, ThePeakIsTheLargestInUseSinceItWasReset) {
  { const DeviceBuffer large(device(), Bytes(512 << 10)); }
  const DeviceBuffer small(device(), Bytes(64 << 10));
  EXPECT_EQ(device().stats().peak_in_use, Bytes(512 << 10));
  device().reset_peak();
  EXPECT_EQ(device().stats().peak_in_use, Bytes(64 << 10));
}

TEST_P(DeviceConformanceTest, TrimGivesWarmMemoryBackAndKeepsWhatIsInUse) {
  const DeviceBuffer kept(device(), Bytes(64 << 10));
  Memory content = pattern(kept.size(), 1);
  up(kept, content).wait();
  { const DeviceBuffer gone(device(), Bytes(512 << 10)); }
  { const DeviceBuffer gone(device(), Bytes(100)); }
  device().trim();
  EXPECT_EQ(device().stats().held, device().stats().in_use);
  Memory back(content.size());
  down(back, kept).wait();
  EXPECT_EQ(back, content);
}

TEST_P(DeviceConformanceTest, ABufferThatIsMovedGivesItsBytesBackOnce) {
  DeviceBuffer first(device(), Bytes(64 << 10));
  DeviceBuffer second(device(), Bytes(128 << 10));
  std::byte* const data = first.data();
  second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(device().stats().in_use, Bytes(64 << 10));
  const DeviceBuffer third(std::move(second));
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move): what a move leaves is the fact
  EXPECT_EQ(device().stats().in_use, Bytes(64 << 10));
}

TEST_P(DeviceConformanceTest, HeldNeverExceedsTheBudgetAndContentStaysUnderRandomLoads) {
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([this, t] {
      SplitMix64 random(t);
      std::vector<DeviceBuffer> held;
      const Memory content = pattern(Bytes(20000), t);
      const auto shown = [](const DeviceBuffer& buffer) {
        return std::min(buffer.size(), Bytes(20000));
      };
      for (int i = 0; i < 300; ++i) {
        const bool small = random.below(2) == 0;
        try {
          held.emplace_back(device(),
                            Bytes(static_cast<std::int64_t>(random.below(small ? 20000 : 300000))));
        } catch (const OutOfDeviceMemory&) {
          held.clear();
        }
        EXPECT_LE(device().stats().held, kBudget);
        if (!held.empty()) {
          device().upload().copy(held.back().data(), content.data(), shown(held.back())).wait();
        }
        if (held.size() > 4) {
          Memory back(shown(held.front()).size());
          down(back, held.front()).wait();
          EXPECT_EQ(std::memcmp(back.data(), content.data(), back.size()), 0);
          held.erase(held.begin());
        }
        if (random.below(100) == 0) device().trim();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const DeviceStats stats = device().stats();
  EXPECT_EQ(stats.in_use, Bytes(0));
  EXPECT_LE(stats.peak_in_use, kBudget);
}

// Copies and events.

TEST_P(DeviceConformanceTest, CopiesOfAllSizesComeBackAsTheyWent) {
  for (const std::int64_t size : {0, 1, 64, 4095, 4096, 4097, 300000}) {
    const DeviceBuffer buffer(device(), Bytes(size));
    const Memory content = pattern(Bytes(size), static_cast<std::uint64_t>(size));
    Memory back(content.size());
    device().download().wait(up(buffer, content));
    down(back, buffer).wait();
    EXPECT_EQ(back, content) << size;
  }
}

TEST_P(DeviceConformanceTest, AStreamKeepsItsOrder) {
  const Memory a = pattern(Bytes(20000), 1);
  const Memory b = pattern(Bytes(20000), 2);
  const DeviceBuffer buffer(device(), Bytes(20000));
  std::vector<Event> events;
  for (int i = 0; i < 20; ++i) {
    events.push_back(up(buffer, a));
    events.push_back(up(buffer, b));
  }
  const Event all = device().upload().record();
  all.wait();
  for (const Event& event : events) EXPECT_TRUE(event.fired());
  Memory back(b.size());
  down(back, buffer).wait();
  EXPECT_EQ(back, b);
}

TEST_P(DeviceConformanceTest, AnEventOrdersOneStreamAfterTheOther) {
  const DeviceBuffer buffer(device(), Bytes(100000));
  for (std::uint64_t round = 0; round < 30; ++round) {
    const Memory content = pattern(buffer.size(), round);
    Memory back(content.size());
    const Event uploaded = up(buffer, content);
    device().download().wait(uploaded);
    const Event downloaded = down(back, buffer);
    // The next upload may not overtake the download either.
    device().upload().wait(downloaded);
    downloaded.wait();
    EXPECT_TRUE(uploaded.fired());
    ASSERT_EQ(back, content) << round;
  }
}

TEST_P(DeviceConformanceTest, AStreamHoldsBackWhatFollowsAWait) {
  const DeviceBuffer buffer(device(), Bytes(1000));
  const Memory before = pattern(buffer.size(), 1);
  const Memory after = pattern(buffer.size(), 2);
  up(buffer, before).wait();
  const Event gate = Event::pending();
  device().upload().wait(gate);
  const Event held = up(buffer, after);
  Memory back(before.size());
  down(back, buffer).wait();
  EXPECT_FALSE(held.fired());
  EXPECT_EQ(back, before);
  gate.fire(nullptr);
  held.wait();
  down(back, buffer).wait();
  EXPECT_EQ(back, after);
}

TEST_P(DeviceConformanceTest, AWaitForAFailedOperationOrdersAndDoesNotFail) {
  const DeviceBuffer buffer(device(), Bytes(100));
  const Memory content = pattern(buffer.size(), 1);
  const Event gate = Event::pending();
  device().upload().wait(gate);
  const Event copied = up(buffer, content);
  gate.fire(std::make_exception_ptr(std::runtime_error("elsewhere")));
  EXPECT_NO_THROW(copied.wait());
}

TEST_P(DeviceConformanceTest, AFailedCopyCarriesItsFailureAndTheStreamGoesOn) {
  if (!GetParam().fail_copy_after) GTEST_SKIP() << "copies of this device do not fail";
  const DeviceBuffer buffer(device(), Bytes(5000));
  const Memory content = pattern(buffer.size(), 1);
  for (std::int64_t failing = 0; failing < 6; ++failing) {
    GetParam().fail_copy_after(device(), failing);
    std::vector<Event> events;
    for (int i = 0; i < 6; ++i) {
      events.push_back(up(buffer, content));
      events.push_back(device().upload().record());
    }
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (static_cast<std::int64_t>(i) == 2 * failing) {
        EXPECT_THROW(events[i].wait(), DeviceError);
        EXPECT_NE(events[i].failure(), nullptr);
      } else {
        EXPECT_NO_THROW(events[i].wait()) << i;
        EXPECT_EQ(events[i].failure(), nullptr);
      }
    }
    EXPECT_NE(first_failure(events), nullptr);
  }
  Memory back(content.size());
  down(back, buffer).wait();
  EXPECT_EQ(back, content);
}

TEST_P(DeviceConformanceTest, AFailedCopyHasMovedNothing) {
  if (!GetParam().fail_copy_after) GTEST_SKIP() << "copies of this device do not fail";
  const DeviceBuffer buffer(device(), Bytes(5000));
  Memory content = pattern(buffer.size(), 1);
  GetParam().fail_copy_after(device(), 0);
  EXPECT_THROW(up(buffer, content).wait(), DeviceError);
  EXPECT_EQ(device().stats().uploaded, Bytes(0));
  up(buffer, content).wait();
  EXPECT_EQ(device().stats().uploaded, Bytes(5000));
}

TEST_P(DeviceConformanceTest, ACallbackRunsOnceWhetherGivenBeforeOrAfterFiring) {
  const DeviceBuffer buffer(device(), Bytes(100));
  const Memory content = pattern(buffer.size(), 1);
  std::atomic<int> early{0};
  const Event gate = Event::pending();
  device().upload().wait(gate);
  const Event event = up(buffer, content);
  event.then([&] { ++early; });
  event.then([&] { ++early; });
  EXPECT_EQ(early, 0);
  gate.fire(nullptr);
  event.wait();
  device().upload().record().wait();  // callbacks run on the stream's thread, before what follows
  EXPECT_EQ(early, 2);
  int late = 0;
  event.then([&] { ++late; });
  EXPECT_EQ(late, 1);
}

TEST_P(DeviceConformanceTest, ACallbackSeesTheEventFiredAndItsFailure) {
  if (!GetParam().fail_copy_after) GTEST_SKIP() << "copies of this device do not fail";
  const DeviceBuffer buffer(device(), Bytes(100));
  const Memory content = pattern(buffer.size(), 1);
  GetParam().fail_copy_after(device(), 0);
  std::promise<bool> seen;
  const Event event = up(buffer, content);
  event.then([&] { seen.set_value(event.fired() && event.failure() != nullptr); });
  EXPECT_TRUE(seen.get_future().get());
}

TEST_P(DeviceConformanceTest, CallbacksGivenWhileEventsFireAreNeverLost) {
  const DeviceBuffer buffer(device(), Bytes(64));
  const Memory content = pattern(buffer.size(), 1);
  std::atomic<int> calls{0};
  constexpr int kCopies = 300;
  for (int i = 0; i < kCopies; ++i) {
    const Event event = up(buffer, content);
    event.then([&] { ++calls; });
    event.then([&] { ++calls; });
  }
  device().upload().record().wait();
  EXPECT_EQ(calls, 2 * kCopies);
}

// Tasks.

TEST_P(DeviceConformanceTest, TasksRunInOrderOnOneThreadWithTheDeviceCurrent) {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  bool current = true;
  for (int i = 0; i < 50; ++i) {
    device().submit([&, i] {
      current = current && current_device() == &device();
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  drain_worker();
  EXPECT_TRUE(current);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  for (const auto id : threads) EXPECT_EQ(id, threads.front());
  EXPECT_NE(threads.front(), std::this_thread::get_id());
  EXPECT_EQ(current_device(), nullptr);
}

TEST_P(DeviceConformanceTest, CopiesProgressWhileATaskRuns) {
  const DeviceBuffer buffer(device(), Bytes(50000));
  const Memory content = pattern(buffer.size(), 1);
  Memory back(content.size());
  std::promise<void> release;
  std::promise<void> started;
  device().submit([&] {
    started.set_value();
    release.get_future().wait();
  });
  started.get_future().wait();
  device().download().wait(up(buffer, content));
  down(back, buffer).wait();  // would hang if copies waited for the task
  EXPECT_EQ(back, content);
  release.set_value();
  drain_worker();
}

TEST_P(DeviceConformanceTest, ATaskMayWaitForACopyAndACopyForATask) {
  const DeviceBuffer buffer(device(), Bytes(50000));
  const Memory content = pattern(buffer.size(), 1);
  const Memory doubled = pattern(buffer.size(), 2);
  const DeviceBuffer second(device(), Bytes(50000));
  Memory back(content.size());
  const Event first_up = up(buffer, content);
  const Event second_up = up(second, doubled);
  std::promise<Event> computed;
  device().submit([&] {
    Stream& compute = device().compute();
    compute.wait(first_up);
    compute.wait(second_up);
    compute.copy(buffer.data(), second.data(), second.size());
    computed.set_value(compute.record());
  });
  device().download().wait(computed.get_future().get());
  down(back, buffer).wait();
  EXPECT_EQ(back, doubled);
}

TEST_P(DeviceConformanceTest, WhatATaskHasCapturedDiesWithTheTask) {
  auto owned = std::make_shared<DeviceBuffer>(device(), Bytes(100000));
  device().submit([moved = std::move(owned)] {});
  drain_worker();
  EXPECT_EQ(device().stats().in_use, Bytes(0));
}

TEST_P(DeviceConformanceTest, TasksOfSeveralThreadsAllRunOnce) {
  std::vector<int> runs(400, 0);  // touched by the worker alone
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 100; ++i)
        device().submit([&runs, n = 100 * t + i] { ++runs[n]; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  drain_worker();
  for (const int count : runs) EXPECT_EQ(count, 1);
}

// Statistics and closing.

TEST_P(DeviceConformanceTest, MovedBytesAreCountedExactlyByDirection) {
  const DeviceBuffer buffer(device(), Bytes(30000));
  Memory memory = pattern(buffer.size(), 1);
  std::int64_t uploaded = 0;
  std::int64_t downloaded = 0;
  SplitMix64 random(4);
  for (int i = 0; i < 40; ++i) {
    memory.resize(static_cast<std::size_t>(random.below(30000)));
    if (random.below(2) == 0) {
      up(buffer, memory).wait();
      uploaded += static_cast<std::int64_t>(memory.size());
    } else {
      down(memory, buffer).wait();
      downloaded += static_cast<std::int64_t>(memory.size());
    }
    const DeviceStats stats = device().stats();
    ASSERT_EQ(stats.uploaded, Bytes(uploaded));
    ASSERT_EQ(stats.downloaded, Bytes(downloaded));
  }
}

TEST_P(DeviceConformanceTest, BusyTimesCoverWhatWasDone) {
  device().submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  drain_worker();
  EXPECT_GE(device().stats().compute_busy, std::chrono::milliseconds(10));
  EXPECT_EQ(device().stats().upload_busy, Nanoseconds(0));
  const DeviceBuffer buffer(device(), Bytes(500000));
  up(buffer, pattern(buffer.size(), 1)).wait();
  EXPECT_GT(device().stats().upload_busy, Nanoseconds(0));
  EXPECT_EQ(device().stats().download_busy, Nanoseconds(0));
}

TEST_P(DeviceConformanceTest, ClosingFinishesWhatWasGivenAndRefusesMore) {
  const DeviceBuffer buffer(device(), Bytes(50000));
  const Memory content = pattern(buffer.size(), 1);
  Memory back(content.size());
  std::atomic<int> ran{0};
  for (int i = 0; i < 20; ++i) device().submit([&] { ++ran; });
  const Event uploaded = up(buffer, content);
  device().download().wait(uploaded);
  const Event downloaded = down(back, buffer);
  device().close();
  device().close();
  EXPECT_EQ(ran, 20);
  EXPECT_TRUE(uploaded.fired());
  EXPECT_TRUE(downloaded.fired());
  EXPECT_EQ(back, content);
  EXPECT_THROW(device().submit([] {}), InternalError);
  EXPECT_THROW(up(buffer, content), InternalError);
  EXPECT_THROW(device().download().record(), InternalError);
}

TEST_P(DeviceConformanceTest, ClosingLetsARunningTaskStartItsCopies) {
  const DeviceBuffer buffer(device(), Bytes(100));
  const Memory content = pattern(buffer.size(), 1);
  std::promise<void> started;
  Event copied = Event::pending();
  device().submit([&] {
    started.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    copied = up(buffer, content);
  });
  started.get_future().wait();
  device().close();
  EXPECT_TRUE(copied.fired());
  EXPECT_EQ(copied.failure(), nullptr);
}

TEST_P(DeviceConformanceTest, MemoryMayBeGivenBackAfterClosing) {
  DeviceBuffer buffer(device(), Bytes(100000));
  device().close();
  buffer.release();
  EXPECT_EQ(device().stats().in_use, Bytes(0));
}

}  // namespace hydra::testing
