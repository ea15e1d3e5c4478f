#include "hydra/core/random.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <set>

namespace hydra {
namespace {

TEST(RandomTest, SplitMixGivesThePublishedSequence) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317ULL);
  EXPECT_EQ(random.next(), 3203168211198807973ULL);
}

TEST(RandomTest, BelowStaysBelowItsBound) {
  SplitMix64 random(1);
  for (int i = 0; i < 1000; ++i) EXPECT_LT(random.below(7), 7U);
}

TEST(RandomTest, MixedSeedsDependOnEveryNumberAndItsPlace) {
  std::set<std::uint64_t> seeds{mix_seed(1, {2, 3}), mix_seed(1, {3, 2}), mix_seed(2, {2, 3}),
                                mix_seed(1, {2}), mix_seed(1, {2, 3, 0})};
  EXPECT_EQ(seeds.size(), 5U);
  EXPECT_EQ(mix_seed(1, {2, 3}), mix_seed(1, {2, 3}));
}

TEST(RandomTest, BelowGivesEveryValueAboutEquallyOften) {
  SplitMix64 random(99);
  std::array<int, 7> counts{};
  constexpr int kDraws = 70000;
  for (int i = 0; i < kDraws; ++i) ++counts[random.below(7)];
  // 10000 each with a standard deviation of 93: six of them.
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 7, 560);
}

TEST(RandomTest, BelowHonoursTheEndsOfItsRange) {
  SplitMix64 random(3);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.below(1), 0U);
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  for (int i = 0; i < 100; ++i) EXPECT_LT(random.below(kMost), kMost);
  // Half of all raw numbers are rejected at this bound.
  constexpr std::uint64_t kHalf = (std::uint64_t{1} << 63) + 1;
  for (int i = 0; i < 100; ++i) EXPECT_LT(random.below(kHalf), kHalf);
}

TEST(RandomTest, NeighbouringSeedsDifferInAboutHalfOfTheirBits) {
  int different = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    different += std::popcount(mix_seed(seed, {7}) ^ mix_seed(seed + 1, {7}));
    different += std::popcount(mix_seed(seed, {7}) ^ mix_seed(seed, {8}));
  }
  EXPECT_NEAR(different, 200 * 32, 350);  // standard deviation 57
}

}  // namespace
}  // namespace hydra
