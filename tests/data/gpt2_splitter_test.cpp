#include "data/gpt2_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/byte_alphabet.h"
#include "data/unicode_class.h"
#include "hydra/core/random.h"

namespace hydra::detail {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(std::string_view text) {
  Pieces pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(text, at);
    EXPECT_GT(end, at);
    EXPECT_LE(end, text.size());
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

TEST(Gpt2SplitterTest, CutsContractionsInLowerCaseAlone) {
  EXPECT_EQ(split("it's I'll they've"), (Pieces{"it", "'s", " I", "'ll", " they", "'ve"}));
  EXPECT_EQ(split("IT'S"), (Pieces{"IT", "'", "S"}));
  EXPECT_EQ(split("'stop"), (Pieces{"'s", "top"}));
  EXPECT_EQ(split("'r 'l '"), (Pieces{"'", "r", " '", "l", " '"}));
  EXPECT_EQ(split("''s"), (Pieces{"''", "s"}));
  EXPECT_EQ(split(" 's"), (Pieces{" '", "s"}));
}

TEST(Gpt2SplitterTest, JoinsOneSpaceToWhatFollows) {
  EXPECT_EQ(split(" a  b"), (Pieces{" a", " ", " b"}));
  EXPECT_EQ(split("a1 2!? x"), (Pieces{"a", "1", " 2", "!?", " x"}));
  EXPECT_EQ(split("a\tb"), (Pieces{"a", "\t", "b"}));
  EXPECT_EQ(split("a \tb"), (Pieces{"a", " ", "\t", "b"}));
  EXPECT_EQ(split("a\n\n b"), (Pieces{"a", "\n\n", " b"}));
}

TEST(Gpt2SplitterTest, KeepsWhiteSpaceAtTheEndWhole) {
  EXPECT_EQ(split("a \n "), (Pieces{"a", " \n "}));
  EXPECT_EQ(split("   "), (Pieces{"   "}));
  EXPECT_EQ(split(" "), (Pieces{" "}));
}

TEST(Gpt2SplitterTest, KnowsUnicodesCategories) {
  EXPECT_EQ(split("\u00e9t\u00e9 \u4e00\u4e8c\u00b2\u0661"),
            (Pieces{"\u00e9t\u00e9", " \u4e00\u4e8c", "\u00b2\u0661"}));
  // A combining mark is neither letter nor number; U+3000 is white space, U+200B is not.
  EXPECT_EQ(split("e\u0301e"), (Pieces{"e", "\u0301", "e"}));
  EXPECT_EQ(split("a\u3000b"), (Pieces{"a", "\u3000", "b"}));
  EXPECT_EQ(split("a\u200bb"), (Pieces{"a", "\u200b", "b"}));
  EXPECT_EQ(split("! \u200b\u200b"), (Pieces{"!", " \u200b\u200b"}));
}

TEST(UnicodeClassTest, CountsAreThoseOfUnicode16) {
  std::array<int, 4> counts{};
  for (std::uint32_t c = 0; c < 0x110000; ++c) ++counts[static_cast<int>(character_class(c))];
  EXPECT_EQ(counts[static_cast<int>(CharacterClass::kLetter)], 141028);
  EXPECT_EQ(counts[static_cast<int>(CharacterClass::kNumber)], 1911);
  EXPECT_EQ(counts[static_cast<int>(CharacterClass::kSpace)], 25);
  EXPECT_EQ(character_class(0xFFFFFFFF), CharacterClass::kOther);
}

TEST(UnicodeClassTest, IllFormedSequencesAreSingleBytes) {
  // Overlong, surrogate, beyond U+10FFFF, lone continuation, cut off, impossible.
  for (const std::string bytes : {"\xC0\xA0", "\xE0\x80\xA0", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                  "\xA0", "\xE4\xB8", "\xFF", "\xC3", "\xF0\x9F\x98"}) {
    const Character first = character_at(bytes, 0);
    EXPECT_EQ(first.bytes, 1) << bytes;
    EXPECT_EQ(first.kind, CharacterClass::kOther) << bytes;
    EXPECT_FALSE(is_utf8(bytes));
  }
  EXPECT_TRUE(is_utf8("a\u00e9\u4e00\U0001F600"));
}

/// Puts U+FFFD for each byte that belongs to no sequence.
std::string lossy(const std::string& bytes, std::vector<std::size_t>& place_of) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint8_t length = character_at(bytes, at).bytes;
    const bool bad = length == 1 && static_cast<unsigned char>(bytes[at]) >= 0x80;
    for (std::size_t i = 0; i < length; ++i) place_of.push_back(text.size() + i);
    text += bad ? "\uFFFD" : bytes.substr(at, length);
    at += length;
  }
  place_of.push_back(text.size());
  return text;
}

TEST(Gpt2SplitterTest, CutsDamagedTextWhereItCutsTheLossilyDecodedText) {
  SplitMix64 random(6);
  const std::string alphabet = "ab 1!'s\n\xC3\xA9\xE4\xB8\x80\xFF\xA0";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (std::uint64_t i = random.below(20); i > 0; --i) {
      bytes += alphabet[random.below(alphabet.size())];
    }
    std::vector<std::size_t> place_of;
    const std::string text = lossy(bytes, place_of);
    std::size_t there = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      at = piece_end(bytes, at);
      there = piece_end(text, there);
      ASSERT_EQ(place_of[at], there) << bytes;
    }
  }
}

TEST(ByteAlphabetTest, EveryByteHasItsOwnPrintableCharacter) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto printable = printable_of(static_cast<unsigned char>(byte));
    EXPECT_EQ(bytes_of(printable), std::string(1, static_cast<char>(byte))) << byte;
  }
  EXPECT_EQ(printable_of(' '), "\u0120");
  EXPECT_EQ(printable_of('\n'), "\u010a");
  EXPECT_EQ(printable_of(0xAD), "\u0143");
  EXPECT_EQ(bytes_of("\u0120the"), " the");
  for (const char* none : {" ", "\u0144", "\u4e00", "\u00ad", "\n"}) {
    EXPECT_EQ(bytes_of(none), std::nullopt) << none;
  }
}

}  // namespace
}  // namespace hydra::detail
