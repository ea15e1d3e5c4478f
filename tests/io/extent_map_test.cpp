#include "hydra/io/extent_map.h"

#include <gtest/gtest.h>

#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/random.h"

namespace hydra {
namespace {

constexpr std::int64_t kUnit = kExtentAlignment;

TEST(ExtentMapTest, TheSmallestRunThatFitsIsTaken) {
  ExtentMap map(Bytes(10 * kUnit));
  const auto a = map.allocate(Bytes(3 * kUnit));
  const auto b = map.allocate(Bytes(1));
  const auto c = map.allocate(Bytes(2 * kUnit));
  const auto d = map.allocate(Bytes(kUnit + 1));
  map.free(*a);
  map.free(*c);
  EXPECT_EQ(map.allocate(Bytes(2 * kUnit)), *c);
  EXPECT_EQ(map.used(), Bytes((1 + 2 + 2) * kUnit));
  EXPECT_EQ(b->size, kUnit);
  EXPECT_EQ(d->size, 2 * kUnit);
}

TEST(ExtentMapTest, NeighboursJoinInEveryOrderOfFreeing) {
  std::vector<int> order{0, 1, 2};
  do {
    ExtentMap map(Bytes(3 * kUnit));
    std::vector<Extent> extents;
    for (int i = 0; i < 3; ++i) extents.push_back(*map.allocate(Bytes(kUnit)));
    EXPECT_FALSE(map.allocate(Bytes(1)));
    for (const int i : order) map.free(extents[static_cast<std::size_t>(i)]);
    EXPECT_EQ(map.largest_free(), Bytes(3 * kUnit));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(ExtentMapTest, FreeingWhatIsFreeIsCaught) {
  ExtentMap map(Bytes(4 * kUnit));
  const auto extent = map.allocate(Bytes(2 * kUnit));
  map.free(*extent);
  EXPECT_THROW(map.free(*extent), InternalError);
  EXPECT_THROW(map.free({8 * kUnit, kUnit}), InternalError);
}

// The model is a plain array of units.
TEST(ExtentMapTest, TenThousandRandomStepsAgreeWithABitmap) {
  constexpr std::size_t kUnits = 256;
  ExtentMap map(Bytes(static_cast<std::int64_t>(kUnits) * kUnit));
  std::vector<bool> taken(kUnits, false);
  std::vector<Extent> held;
  SplitMix64 random(3);
  const auto longest_free = [&] {
    std::size_t best = 0;
    std::size_t run = 0;
    for (const bool unit : taken) {
      run = unit ? 0 : run + 1;
      best = std::max(best, run);
    }
    return static_cast<std::int64_t>(best) * kUnit;
  };
  const auto mark = [&](const Extent& extent, bool value) {
    for (std::int64_t u = extent.offset / kUnit; u < (extent.offset + extent.size) / kUnit; ++u) {
      ASSERT_NE(taken[static_cast<std::size_t>(u)], value);
      taken[static_cast<std::size_t>(u)] = value;
    }
  };
  for (int step = 0; step < 10000; ++step) {
    if (held.empty() || random.below(2) == 0) {
      const auto bytes = static_cast<std::int64_t>(1 + random.below(40 * kUnit));
      const auto extent = map.allocate(Bytes(bytes));
      ASSERT_EQ(extent.has_value(), Bytes(bytes).rounded_up(kUnit).count() <= longest_free());
      if (!extent) continue;
      ASSERT_EQ(extent->size, Bytes(bytes).rounded_up(kUnit).count());
      mark(*extent, true);
      held.push_back(*extent);
    } else {
      const std::size_t i = random.below(held.size());
      mark(held[i], false);
      map.free(held[i]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    }
    const auto used = std::count(taken.begin(), taken.end(), true) * kUnit;
    ASSERT_EQ(map.used(), Bytes(used));
    ASSERT_EQ(map.largest_free(), Bytes(longest_free()));
  }
}

}  // namespace
}  // namespace hydra
