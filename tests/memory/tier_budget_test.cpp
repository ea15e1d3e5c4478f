#include "hydra/memory/tier_budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "hydra/core/error.h"

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

}  // namespace
}  // namespace hydra
