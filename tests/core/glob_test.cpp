#include "hydra/core/glob.h"

#include <gtest/gtest.h>

namespace hydra {
namespace {

TEST(GlobTest, StarStandsForAnyRunOfCharacters) {
  EXPECT_TRUE(glob_match("*.ln_*", "block0.ln_1.weight"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("a*b*c", "aXbXbXc"));
  EXPECT_FALSE(glob_match("a*b", "aXc"));
}

TEST(GlobTest, QuestionMarkStandsForOneCharacter) {
  EXPECT_TRUE(glob_match("block?.weight", "block3.weight"));
  EXPECT_FALSE(glob_match("block?.weight", "block12.weight"));
}

TEST(GlobTest, TheWholeTextMustMatch) {
  EXPECT_FALSE(glob_match("block", "block0"));
  EXPECT_FALSE(glob_match("lock0", "block0"));
}

}  // namespace
}  // namespace hydra
