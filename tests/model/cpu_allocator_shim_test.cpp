#include "hydra/model/cpu_allocator_shim.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

#include "hydra/core/error.h"
#include "model/autograd_queue.h"
#include "on_device.h"

namespace hydra {
namespace {

using namespace literals;  // NOLINT: byte literals

class CpuAllocatorShimTest : public ::testing::Test {
 protected:
  CpuAllocatorShimTest() { install_cpu_allocator_shim(); }
  Bytes in_use() const { return device_.stats().in_use; }

  VirtualDevice device_{device_of(8_MiB)};
};

TEST_F(CpuAllocatorShimTest, WhatATaskAllocatesIsCountedToTheByteThatTheDeviceRoundsTo) {
  on_device(device_, [&] {
    for (const std::int64_t bytes : {1, 64, 65, 4000, 16384, 100000}) {
      const at::Tensor tensor = at::empty({bytes}, at::kByte);
      EXPECT_EQ(in_use(), device_.allocation_size(Bytes(bytes))) << bytes;
    }
    EXPECT_EQ(in_use(), 0_B);
    at::Tensor grown = at::empty({1000}, at::kByte);
    grown.resize_({100000});
    EXPECT_EQ(in_use(), device_.allocation_size(100000_B));
  });
  EXPECT_EQ(in_use(), 0_B);
}

TEST_F(CpuAllocatorShimTest, EmptyTensorsCostNothing) {
  on_device(device_, [&] {
    const at::Tensor nothing = at::empty({0});
    EXPECT_EQ(in_use(), 0_B);
  });
}

TEST_F(CpuAllocatorShimTest, OutsideTasksAllocationsGoToTheAllocatorBefore) {
  const at::Tensor tensor = at::empty({64 << 20}, at::kByte);  // beyond the budget
  EXPECT_EQ(in_use(), 0_B);
}

TEST_F(CpuAllocatorShimTest, InstallingTwiceIsInstallingOnce) {
  c10::Allocator* const installed = c10::GetCPUAllocator();
  install_cpu_allocator_shim();
  EXPECT_EQ(c10::GetCPUAllocator(), installed);
}

TEST_F(CpuAllocatorShimTest, MemoryIsGivenBackToItsDeviceByAnyThread) {
  at::Tensor kept;
  on_device(device_, [&] { kept = at::empty({1 << 20}, at::kByte); });
  EXPECT_EQ(in_use(), 1_MiB);
  std::thread([&] { kept.reset(); }).join();
  EXPECT_EQ(in_use(), 0_B);
  // And what came from elsewhere goes back there, on whichever thread.
  kept = at::empty({1 << 20}, at::kByte);
  on_device(device_, [&] { kept.reset(); });
  EXPECT_EQ(in_use(), 0_B);
}

TEST_F(CpuAllocatorShimTest, EachDevicePaysForItsOwnTasks) {
  VirtualDevice other(device_of(8_MiB, "cpu1"));
  at::Tensor here;
  at::Tensor there;
  on_device(device_, [&] { here = at::empty({1 << 20}, at::kByte); });
  on_device(other, [&] { there = at::empty({2 << 20}, at::kByte); });
  EXPECT_EQ(in_use(), 1_MiB);
  EXPECT_EQ(other.stats().in_use, 2_MiB);
  on_device(other, [&] { here.reset(); });
  EXPECT_EQ(in_use(), 0_B);
  EXPECT_EQ(other.stats().in_use, 2_MiB);
  there.reset();
}

TEST_F(CpuAllocatorShimTest, ARequestBeyondTheBudgetIsATypedErrorAfterWhichTheDeviceWorks) {
  on_device(device_, [&] {
    const at::Tensor held = at::empty({1 << 20}, at::kByte);
    try {
      at::empty({8 << 20}, at::kByte);
      FAIL() << "the budget was not enforced";
    } catch (const OutOfDeviceMemory& error) {
      EXPECT_EQ(error.requested(), 8_MiB);
      EXPECT_EQ(error.in_use(), 1_MiB);
      EXPECT_EQ(error.budget(), 8_MiB);
    }
    EXPECT_NO_THROW(at::empty({7 << 20}, at::kByte));
  });
}

TEST_F(CpuAllocatorShimTest, ConvolutionsScratchMemoryIsCountedAndGivenBack) {
  on_device(device_, [&] {
    {
      const at::Tensor images = at::randn({2, 3, 16, 16});
      const at::Tensor kernels = at::randn({4, 3, 3, 3}).requires_grad_(true);
      at::conv2d(images, kernels).sum().backward();
    }
    EXPECT_EQ(in_use(), 0_B);
  });
}

/// A forward and backward whose every allocation may fail.
void train_a_little() {
  const at::Tensor input = at::ones({16, 32}).requires_grad_(true);
  at::Tensor weight = at::ones({32, 32}).requires_grad_(true);
  at::Tensor flowing = input;
  for (int l = 0; l < 4; ++l) flowing = at::tanh(at::linear(flowing, weight));
  flowing.sum().backward();
}

TEST_F(CpuAllocatorShimTest, AFailureAtAnyAllocationHasItsOwnTypeAndLeavesNothingBehind) {
  on_device(device_, [&] {
    int failures = 0;
    for (bool done = false; !done; ++failures) {
      ASSERT_LT(failures, 1000);
      device_.fail_allocation_after(failures);
      try {
        train_a_little();
        done = true;
      } catch (const OutOfDeviceMemory&) {
      }  // any other type fails the test
      device_.fail_allocation_after(-1);
      release_autograd_queue();
      ASSERT_EQ(in_use(), 0_B) << "after a failure at allocation " << failures;
    }
    EXPECT_GT(failures, 20);
  });
}

TEST_F(CpuAllocatorShimTest, TheAutogradQueueIsReleasedEvenWhenTheDeviceIsFull) {
  on_device(device_, [&] {
    const at::Tensor everything = at::empty({8 << 20}, at::kByte);
    EXPECT_NO_THROW(release_autograd_queue());
  });
}

TEST_F(CpuAllocatorShimTest, ManyThreadsAllocateAndFreeForManyDevices) {
  VirtualDevice other(device_of(8_MiB, "cpu1"));
  at::Tensor swapped[2][50];
  std::thread first([&] {
    on_device(device_, [&] {
      for (auto& tensor : swapped[0]) tensor = at::empty({1000});
    });
  });
  std::thread second([&] {
    on_device(other, [&] {
      for (auto& tensor : swapped[1]) tensor = at::empty({1000});
    });
  });
  first.join();
  second.join();
  std::thread third([&] {
    on_device(other, [&] {
      for (auto& tensor : swapped[0]) tensor.reset();
    });
  });
  on_device(device_, [&] {
    for (auto& tensor : swapped[1]) tensor.reset();
  });
  third.join();
  EXPECT_EQ(in_use(), 0_B);
  EXPECT_EQ(other.stats().in_use, 0_B);
}

}  // namespace
}  // namespace hydra
