#include "hydra/core/glob.h"

#include <gtest/gtest.h>

#include <string>

#include "hydra/core/random.h"

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

TEST(GlobTest, StarsAtTheEndsAndNextToEachOther) {
  EXPECT_TRUE(glob_match("**", ""));
  EXPECT_TRUE(glob_match("a**", "a"));
  EXPECT_TRUE(glob_match("**a", "bba"));
  EXPECT_FALSE(glob_match("?*?", "a"));
  EXPECT_TRUE(glob_match("?*?", "ab"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("", ""));
}

TEST(GlobTest, AStarInTheTextIsAnOrdinaryCharacter) {
  EXPECT_TRUE(glob_match("a?b", "a*b"));
  EXPECT_FALSE(glob_match("ab", "a*"));
  EXPECT_TRUE(glob_match("*b", "*b"));
}

/// The definition, in exponential time.
bool matches_by_definition(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    return matches_by_definition(pattern.substr(1), text) ||
           (!text.empty() && matches_by_definition(pattern, text.substr(1)));
  }
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
         matches_by_definition(pattern.substr(1), text.substr(1));
}

TEST(GlobTest, AgreesWithTheDefinitionOnRandomPatterns) {
  SplitMix64 random(5);
  const auto word = [&](std::string_view letters, std::uint64_t longest) {
    std::string text(random.below(longest + 1), ' ');
    for (char& letter : text) letter = letters[random.below(letters.size())];
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string pattern = word("ab*?.", 6);
    const std::string text = word("ab.", 8);
    const bool expected = matches_by_definition(pattern, text);
    EXPECT_EQ(glob_match(pattern, text), expected) << pattern << " on " << text;
    matches += expected ? 1 : 0;
  }
  EXPECT_GT(matches, 500);
}

}  // namespace
}  // namespace hydra
