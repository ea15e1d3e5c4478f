#include "hydra/memory/host_arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/testing/sweep.h"

namespace hydra {
namespace {

bool holds(const HostBuffer& buffer, unsigned char content) {
  for (const std::byte byte : buffer.span()) {
    if (std::to_integer<unsigned char>(byte) != content) return false;
  }
  return true;
}

TEST(HostArenaTest, ABufferIsAsLargeAsItsReservationAndAlignedToPages) {
  TierBudget budget("host", Bytes(1 << 20));
  HostArena arena(budget.capacity());
  const HostBuffer buffer = arena.allocate(*budget.try_reserve(Bytes(10001)));
  EXPECT_TRUE(buffer);
  EXPECT_EQ(buffer.size(), Bytes(10001));
  EXPECT_EQ(buffer.span().size(), 10001U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096, 0U);
  EXPECT_EQ(budget.reserved(), Bytes(10001));
}

TEST(HostArenaTest, TheReservationIsGivenBackWithTheBuffer) {
  TierBudget budget("host", Bytes(1 << 20));
  HostArena arena(budget.capacity());
  HostBuffer kept;
  {
    HostBuffer dies = arena.allocate(*budget.try_reserve(Bytes(5000)));
    kept = arena.allocate(*budget.try_reserve(Bytes(7000)));
    EXPECT_EQ(budget.reserved(), Bytes(12000));
  }
  EXPECT_EQ(budget.reserved(), Bytes(7000));
  kept.release();
  kept.release();
  EXPECT_FALSE(kept);
  EXPECT_EQ(kept.size(), Bytes(0));
  EXPECT_EQ(budget.reserved(), Bytes(0));
}

TEST(HostArenaTest, MovingABufferMovesItsMemoryAndItsReservation) {
  TierBudget budget("host", Bytes(1 << 20));
  HostArena arena(budget.capacity());
  HostBuffer first = arena.allocate(*budget.try_reserve(Bytes(100)));
  std::memset(first.data(), 7, 100);
  std::byte* const data = first.data();
  HostBuffer second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): what a move leaves is the fact
  EXPECT_EQ(second.data(), data);
  HostBuffer third = arena.allocate(*budget.try_reserve(Bytes(200)));
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_TRUE(holds(third, 7));
  EXPECT_EQ(budget.reserved(), Bytes(100));
}

TEST(HostArenaTest, BuffersOutliveTheArenaAndTheBudget) {
  HostBuffer buffer;
  {
    TierBudget budget("host", Bytes(1 << 20));
    HostArena arena(budget.capacity());
    buffer = arena.allocate(*budget.try_reserve(Bytes(1 << 20)));
  }
  std::memset(buffer.data(), 9, buffer.size().size());
  EXPECT_TRUE(holds(buffer, 9));
}

TEST(HostArenaTest, WhateverTheBudgetGrantsTheArenaCanHold) {
  // Small buffers lose most to whole pages.
  TierBudget budget("host", Bytes(1 << 20));
  HostArena arena(budget.capacity());
  std::vector<HostBuffer> held;
  while (auto granted = budget.try_reserve(Bytes(5000))) {
    held.push_back(arena.allocate(std::move(*granted)));
  }
  EXPECT_EQ(held.size(), (1U << 20) / 5000);
}

TEST(HostArenaTest, AFullArenaSaysWhatIsInUseAndKeepsNothing) {
  TierBudget budget("host", Bytes(std::int64_t{1} << 30));
  HostArena arena(Bytes(60 << 20));
  const HostBuffer most = arena.allocate(*budget.try_reserve(Bytes(60 << 20)));
  try {
    arena.allocate(*budget.try_reserve(Bytes(5 << 20)));
    FAIL() << "nothing was thrown";
  } catch (const OutOfHostMemory& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("5.00 MiB"), std::string::npos) << message;
    EXPECT_NE(message.find("60.00 MiB"), std::string::npos) << message;
  }
  EXPECT_EQ(budget.reserved(), Bytes(60 << 20));
}

TEST(HostArenaTest, WarmPagesGoBeforeTheBudgetIsPassed) {
  TierBudget budget("host", Bytes(64 << 20));
  HostArena arena(budget.capacity());
  const auto turn = [&](Bytes size) {
    std::vector<HostBuffer> held;
    while (auto granted = budget.try_reserve(size)) {
      held.push_back(arena.allocate(std::move(*granted)));
      std::memset(held.back().data(), 1, size.size());
      EXPECT_LE(arena.held(), budget.capacity());
    }
    while (!held.empty()) {
      held.pop_back();
      EXPECT_LE(arena.held(), budget.capacity());
    }
  };
  for (const std::int64_t size : {64 << 20, 4 << 20, 20 << 10, 12 << 20, 1 << 20, 60 << 20}) {
    turn(Bytes(size));
  }
  EXPECT_EQ(arena.held(), budget.capacity());  // all of it warm
}

TEST(HostArenaTest, OnlyTheEndsOfLastPagesPassTheBudgetAndTheyGoWithTheirBuffers) {
  constexpr std::int64_t kPage = 4096;
  TierBudget budget("host", Bytes(100 * kPage));
  HostArena arena(budget.capacity());
  std::vector<HostBuffer> held;
  for (int i = 0; i < 50; ++i) {  // a byte into the third page
    held.push_back(arena.allocate(*budget.try_reserve(Bytes(2 * kPage - 1))));
    held.push_back(arena.allocate(*budget.try_reserve(Bytes(1))));
  }
  EXPECT_EQ(budget.available(), Bytes(0));
  EXPECT_EQ(arena.held(), Bytes(150 * kPage));
  for (int i = 0; i < 50; ++i) held.pop_back();
  EXPECT_EQ(arena.held(), Bytes(100 * kPage));
  held.clear();
  EXPECT_EQ(arena.held(), Bytes(100 * kPage));
}

TEST(HostArenaTest, ThreadsThatAllocateAndReleaseKeepTheirContentAndBalanceToZero) {
  TierBudget budget("host", Bytes(4 << 20));
  HostArena arena(budget.capacity());
  std::vector<std::thread> threads;
  for (unsigned char t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      SplitMix64 random(t);
      std::vector<HostBuffer> held;
      for (int round = 0; round < testing::sweep_rounds(300); ++round) {
        const Bytes bytes(static_cast<std::int64_t>(random.below(400000)));
        if (auto granted = budget.try_reserve(bytes)) {
          held.push_back(arena.allocate(std::move(*granted)));
          std::memset(held.back().data(), t, bytes.size());
        }
        if (held.size() > 3 || (!held.empty() && random.below(2) == 0)) {
          EXPECT_TRUE(holds(held.front(), t));
          held.erase(held.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.reserved(), Bytes(0));
  EXPECT_LE(budget.peak(), budget.capacity());
}

}  // namespace
}  // namespace hydra
