#include "hydra/data/bpe_tokenizer.h"

#include "bpe_fixture.h"
#include "hydra/core/error.h"
#include "hydra/core/random.h"

namespace hydra {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::string_view kEnd = "<|endoftext|>";

class BpeTokenizerTest : public BpeFixture {
 protected:
  static BpeTokenizer golden_tokenizer(const BpeOptions& options = {}) {
    return BpeTokenizer::from_tokenizer_json(golden("tokenizer.json").string(), options);
  }

  static void expect_golden_ids(const BpeTokenizer& tokenizer) {
    for (const auto& row : golden_json("cases.json")) {
      const auto text = row["text"].get<std::string>();
      EXPECT_EQ(tokenizer.encode(text), row["ids"].get<Ids>()) << row["text"];
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << row["text"];
    }
  }

  static std::string random_bytes(SplitMix64& random, std::size_t size) {
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(random.below(256));
    return bytes;
  }
};

TEST_F(BpeTokenizerTest, GivesHuggingFacesIdsFromTokenizerJson) {
  expect_golden_ids(golden_tokenizer());
}

TEST_F(BpeTokenizerTest, GivesTheSameIdsFromVocabularyAndMerges) {
  const auto json = golden_json("tokenizer.json");
  write("vocab.json", json["model"]["vocab"].dump());
  write("merges.txt", merges_text(json));
  expect_golden_ids(BpeTokenizer::from_folder(folder_.string()));
}

TEST_F(BpeTokenizerTest, GivesTheSameIdsFromOpenAisFileNamesAndMergesInStrings) {
  auto json = golden_json("tokenizer.json");
  write("encoder.json", json["model"]["vocab"].dump());
  std::string merges = merges_text(json);
  write("vocab.bpe", merges);
  expect_golden_ids(BpeTokenizer::from_folder(folder_.string()));
  for (auto& merge : json["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  write("tokenizer.json", json.dump());
  expect_golden_ids(BpeTokenizer::from_folder(folder_.string()));
}

TEST_F(BpeTokenizerTest, ReadsAddedTokensBeyondTheVocabulary) {
  const auto json = golden_json("tokenizer.json");
  const auto size = static_cast<std::int32_t>(json["model"]["vocab"].size());
  write("vocab.json", json["model"]["vocab"].dump());
  write("merges.txt", merges_text(json));
  write("added_tokens.json", "{\"<pad>\": " + std::to_string(size) + "}");
  const auto tokenizer = BpeTokenizer::from_folder(folder_.string());
  EXPECT_EQ(tokenizer.vocabulary_size(), size + 1);
  EXPECT_EQ(tokenizer.encode("<pad><pad>"), (Ids{size, size}));
  EXPECT_EQ(tokenizer.special_token("<pad>"), size);
  EXPECT_TRUE(tokenizer.special_token(kEnd).has_value());
}

TEST_F(BpeTokenizerTest, KeepsAnyBytes) {
  const auto tokenizer = golden_tokenizer();
  SplitMix64 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::string bytes = random_bytes(random, random.below(80));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string lone(1, static_cast<char>(byte));
    EXPECT_EQ(tokenizer.encode(lone).size(), 1U) << byte;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(lone)), lone) << byte;
  }
}

TEST_F(BpeTokenizerTest, DecodesEveryIdAndRefusesOthers) {
  const auto tokenizer = golden_tokenizer();
  Ids all;
  std::string joined;
  for (std::int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    all.push_back(id);
    joined += tokenizer.decode({id});
  }
  EXPECT_EQ(tokenizer.decode(all), joined);
  EXPECT_THROW(tokenizer.decode({-1}), InvalidArgument);
  try {
    tokenizer.decode({0, static_cast<std::int32_t>(tokenizer.vocabulary_size())});
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("600 at place 1"), std::string::npos) << error.what();
  }
}

TEST_F(BpeTokenizerTest, TakesTheLongestOfTheSpecialTokensAtAPlace) {
  auto json = golden_json("tokenizer.json");
  for (const auto& [content, id] : {std::pair{"<a>", 600}, std::pair{"<a><b>", 601}}) {
    json["added_tokens"].push_back({{"id", id}, {"content", content}});
  }
  const auto tokenizer = BpeTokenizer::from_tokenizer_json(write("tokenizer.json", json.dump()));
  EXPECT_EQ(tokenizer.encode("<a><b><a><a>"), (Ids{601, 600, 600}));
  EXPECT_EQ(tokenizer.decode({601, 600}), "<a><b><a>");
}

TEST_F(BpeTokenizerTest, TextThatSpellsASpecialTokenIsTextWhereThatIsAskedFor) {
  const std::string text = "a" + std::string(kEnd) + "b";
  const auto trusting = golden_tokenizer();
  const auto wary = golden_tokenizer({.special_tokens = {}, .specials_in_text = false});
  const auto end = trusting.special_token(kEnd).value();
  EXPECT_EQ(std::ranges::count(trusting.encode(text), end), 1);
  EXPECT_EQ(std::ranges::count(wary.encode(text), end), 0);
  EXPECT_EQ(wary.decode(wary.encode(text)), text);
}

TEST_F(BpeTokenizerTest, AddsASpaceWhereTheFileAsksForOne) {
  auto json = golden_json("tokenizer.json");
  json["pre_tokenizer"]["add_prefix_space"] = true;
  const auto tokenizer = BpeTokenizer::from_tokenizer_json(write("tokenizer.json", json.dump()));
  const auto plain = golden_tokenizer();
  EXPECT_EQ(tokenizer.encode("the\nx"), plain.encode(" the\nx"));
  EXPECT_EQ(tokenizer.encode("\nx"), plain.encode(" \nx"));
  EXPECT_EQ(tokenizer.encode(" the"), plain.encode(" the"));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
}

TEST_F(BpeTokenizerTest, DocumentsGiveTheSameIdsOnAnyNumberOfThreads) {
  const auto tokenizer = golden_tokenizer();
  SplitMix64 random(8);
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back("the " + random_bytes(random, random.below(200)));
  const std::vector<std::string_view> documents(texts.begin(), texts.end());
  std::vector<Ids> expected;
  for (const auto& text : texts) expected.push_back(tokenizer.encode(text));
  for (const int threads : {1, 2, 5, 300}) {
    EXPECT_EQ(tokenizer.encode_documents(documents, threads), expected) << threads;
  }
  EXPECT_TRUE(tokenizer.encode_documents({}, 4).empty());
  EXPECT_THROW(tokenizer.encode_documents(documents, 0), InvalidArgument);
}

TEST_F(BpeTokenizerTest, IdsDoNotDependOnWhatWasEncodedBefore) {
  const auto used = golden_tokenizer();
  SplitMix64 random(4);
  // More distinct pieces than the cache has places, so that they push each other out.
  for (int i = 0; i < 60000; ++i) used.encode("q" + std::to_string(random.next()) + "x");
  expect_golden_ids(used);
  expect_golden_ids(used);
}

TEST_F(BpeTokenizerTest, EncodesGpt2sOwnVocabulary) {
  const std::filesystem::path folder = HYDRA_SHARED_DATA "/gpt2-vocab";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no GPT-2 vocabulary in " << folder;
  const auto tokenizer = BpeTokenizer::from_folder(folder.string());
  EXPECT_EQ(tokenizer.vocabulary_size(), 50257);
  EXPECT_EQ(tokenizer.special_token(kEnd), 50256);
  EXPECT_EQ(tokenizer.encode("Hello, world! It's 2024.\n<|endoftext|>"),
            (Ids{15496, 11, 995, 0, 632, 338, 48609, 13, 198, 50256}));
}

}  // namespace
}  // namespace hydra
