#include "hydra/core/random.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace hydra
