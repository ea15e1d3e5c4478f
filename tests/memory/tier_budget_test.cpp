#include "hydra/memory/tier_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/testing/sweep.h"

namespace hydra {
namespace {

TEST(TierBudgetTest, GrantsUpToItsCapacityAndNoFurther) {
  TierBudget budget("host", Bytes(100));
  auto first = budget.try_reserve(Bytes(60));
  ASSERT_TRUE(first);
  EXPECT_FALSE(budget.try_reserve(Bytes(41)));
  EXPECT_TRUE(budget.try_reserve(Bytes(40)));
  first->release();
  EXPECT_EQ(budget.reserved(), Bytes(0));
  EXPECT_EQ(budget.peak(), Bytes(100));
}

TEST(TierBudgetTest, SplittingAndMergingKeepTheSum) {
  TierBudget budget("host", Bytes(100));
  Reservation all = *budget.try_reserve(Bytes(100));
  Reservation part = all.split(Bytes(30));
  EXPECT_EQ(all.bytes(), Bytes(70));
  EXPECT_EQ(budget.reserved(), Bytes(100));
  EXPECT_THROW(all.split(Bytes(71)), InternalError);
  all.merge(std::move(part));
  EXPECT_EQ(all.bytes(), Bytes(100));
}

TEST(TierBudgetTest, AReservationOutlivesItsBudget) {
  Reservation kept;
  {
    TierBudget budget("host", Bytes(10));
    kept = *budget.try_reserve(Bytes(10));
  }
  EXPECT_EQ(kept.bytes(), Bytes(10));
}

TEST(TierBudgetTest, ManyThreadsNeverExceedTheCapacityAndBalanceToZero) {
  TierBudget budget("host", Bytes(1000));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto granted = budget.try_reserve(Bytes(100 + 97 * t));
        EXPECT_LE(budget.reserved(), budget.capacity());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.reserved(), Bytes(0));
  EXPECT_LE(budget.peak(), budget.capacity());
}

TEST(TierBudgetTest, AgreesWithAModelUnderRandomOperations) {
  TierBudget budget("host", Bytes(1000));
  SplitMix64 random(17);
  std::vector<Reservation> held;
  std::vector<std::int64_t> model;  // the bytes of each
  std::int64_t peak = 0;
  const auto reserved = [&] {
    std::int64_t sum = 0;
    for (const std::int64_t bytes : model) sum += bytes;
    return sum;
  };
  const auto any = [&] { return static_cast<std::size_t>(random.below(held.size())); };
  for (int round = 0; round < testing::sweep_rounds(5000); ++round) {
    const std::uint64_t operation = held.empty() ? 0 : random.below(6);
    if (operation <= 1) {
      const auto bytes = static_cast<std::int64_t>(random.below(300));
      auto granted = budget.try_reserve(Bytes(bytes));
      ASSERT_EQ(granted.has_value(), reserved() + bytes <= 1000);
      if (granted) {
        held.push_back(std::move(*granted));
        model.push_back(bytes);
      }
    } else if (operation == 2) {
      const std::size_t at = any();
      const auto part =
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(model[at]) + 1));
      held.push_back(held[at].split(Bytes(part)));
      model[at] -= part;
      model.push_back(part);
    } else if (operation == 3) {
      const std::size_t into = any();
      const std::size_t from = any();
      if (into == from) continue;
      held[into].merge(std::move(held[from]));
      model[into] += std::exchange(model[from], 0);
    } else if (operation == 4) {
      const std::size_t into = any();
      const std::size_t from = any();
      if (into == from) continue;
      held[into] = std::move(held[from]);  // what it held goes back
      model[into] = std::exchange(model[from], 0);
    } else {
      const std::size_t at = any();
      std::swap(held[at], held.back());
      std::swap(model[at], model.back());
      held.pop_back();
      model.pop_back();
    }
    peak = std::max(peak, reserved());
    ASSERT_EQ(budget.reserved(), Bytes(reserved()));
    ASSERT_EQ(budget.available(), Bytes(1000 - reserved()));
    ASSERT_EQ(budget.peak(), Bytes(peak));
    for (std::size_t i = 0; i < held.size(); ++i) ASSERT_EQ(held[i].bytes(), Bytes(model[i]));
  }
  held.clear();
  EXPECT_EQ(budget.reserved(), Bytes(0));
}

TEST(TierBudgetTest, ARequestBeyondAllNumbersIsRefused) {
  TierBudget budget("host", Bytes(100));
  const auto some = budget.try_reserve(Bytes(60));
  EXPECT_FALSE(budget.try_reserve(Bytes(INT64_MAX)));
  EXPECT_EQ(budget.reserved(), Bytes(60));
}

TEST(TierBudgetTest, NegativeNumbersAreRefused) {
  EXPECT_THROW(TierBudget("host", Bytes(-1)), InvalidArgument);
  TierBudget budget("host", Bytes(100));
  EXPECT_THROW(budget.try_reserve(Bytes(-1)), InternalError);
  Reservation held = *budget.try_reserve(Bytes(10));
  EXPECT_THROW(held.split(Bytes(-1)), InternalError);
  EXPECT_EQ(budget.reserved(), Bytes(10));
}

TEST(TierBudgetTest, ReservationsOfTwoBudgetsAreNotMerged) {
  TierBudget host("host", Bytes(100));
  TierBudget device("cpu0", Bytes(100));
  Reservation of_host = *host.try_reserve(Bytes(10));
  EXPECT_THROW(of_host.merge(*device.try_reserve(Bytes(20))), InternalError);
  EXPECT_EQ(of_host.bytes(), Bytes(10));
  EXPECT_EQ(host.reserved(), Bytes(10));
  EXPECT_EQ(device.reserved(), Bytes(0));
}

TEST(TierBudgetTest, AnEmptyReservationTakesOverWhatIsMergedIntoIt) {
  TierBudget budget("host", Bytes(100));
  Reservation empty;
  empty.merge(*budget.try_reserve(Bytes(10)));
  EXPECT_EQ(empty.bytes(), Bytes(10));
  empty.merge(Reservation());
  EXPECT_EQ(empty.bytes(), Bytes(10));
  empty.release();
  empty.release();
  EXPECT_EQ(budget.reserved(), Bytes(0));
}

TEST(TierBudgetTest, AReservationMayBeReleasedOnAnotherThread) {
  TierBudget budget("host", Bytes(100));
  auto granted = budget.try_reserve(Bytes(100));
  std::thread([moved = std::move(*granted)]() mutable { moved.release(); }).join();
  EXPECT_EQ(budget.reserved(), Bytes(0));
  EXPECT_EQ(granted->bytes(), Bytes(0));
}

}  // namespace
}  // namespace hydra
