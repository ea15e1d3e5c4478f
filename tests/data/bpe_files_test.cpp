#include <functional>

#include "bpe_fixture.h"
#include "data/shown_text.h"
#include "hydra/core/error.h"
#include "hydra/data/bpe_tokenizer.h"

namespace hydra {
namespace {

using Json = nlohmann::json;

class BpeFilesTest : public BpeFixture {
 protected:
  /// Returns what the refusal of an altered tokenizer.json says; the type is checked.
  template <typename Expected>
  std::string refusal(const std::function<void(Json&)>& alter) {
    Json json = golden_json("tokenizer.json");
    alter(json);
    return refusal_of<Expected>(
        [&] { BpeTokenizer::from_tokenizer_json(write("tokenizer.json", json.dump())); });
  }

  /// The same for an altered pair of files.
  std::string refusal_of_files(const std::string& vocabulary, const std::string& merges) {
    return refusal_of<DataError>([&] {
      BpeTokenizer::from_files(write("vocab.json", vocabulary), write("merges.txt", merges));
    });
  }

  template <typename Expected>
  static std::string refusal_of(const std::function<void()>& read) {
    try {
      read();
    } catch (const Expected& error) {
      return error.what();
    } catch (const std::exception& error) {
      return std::string("another type: ") + error.what();
    }
    return "no refusal";
  }

  static std::string vocabulary() { return golden_json("tokenizer.json")["model"]["vocab"].dump(); }
};

void expect_names(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message << " lacks: " << part;
}

TEST_F(BpeFilesTest, RefusesSettingsThatWouldGiveOtherIdsByKey) {
  const std::vector<std::pair<std::string, std::function<void(Json&)>>> cases{
      {"model.type", [](Json& j) { j["model"]["type"] = "Unigram"; }},
      {"model.dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }},
      {"model.ignore_merges", [](Json& j) { j["model"]["ignore_merges"] = true; }},
      {"model.byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; }},
      {"model.end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "NFC"}};
       }},
      {"pre_tokenizer.type", [](Json& j) { j["pre_tokenizer"]["type"] = "Whitespace"; }},
      {"pre_tokenizer.use_regex", [](Json& j) { j["pre_tokenizer"]["use_regex"] = false; }},
      {"post_processor.type",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}};
       }},
      {"added_tokens[0].lstrip", [](Json& j) { j["added_tokens"][0]["lstrip"] = true; }},
  };
  for (const auto& [key, alter] : cases) {
    const std::string message = refusal<Unsupported>(alter);
    expect_names(message, key);
    expect_names(message, path("tokenizer.json"));
  }
}

TEST_F(BpeFilesTest, TakesAbsentAndNullSettingsAsNeutral) {
  const auto no_refusal = [&](const std::function<void(Json&)>& alter) {
    return refusal<DataError>(alter);
  };
  EXPECT_EQ(no_refusal([](Json& j) { j["model"].erase("type"); }), "no refusal");
  EXPECT_EQ(no_refusal([](Json& j) { j.erase("decoder"); }), "no refusal");
  EXPECT_EQ(no_refusal([](Json& j) { j["model"]["dropout"] = 0.0; }), "no refusal");
  EXPECT_EQ(no_refusal([](Json& j) { j["model"]["continuing_subword_prefix"] = ""; }),
            "no refusal");
}

TEST_F(BpeFilesTest, RefusesAMalformedTokenizerJsonByKey) {
  const std::vector<std::pair<std::string, std::function<void(Json&)>>> cases{
      {"model is no", [](Json& j) { j.erase("model"); }},
      {"model.vocab is no", [](Json& j) { j["model"]["vocab"] = 3; }},
      {"model.merges is no", [](Json& j) { j["model"].erase("merges"); }},
      {"model.merges[2]", [](Json& j) { j["model"]["merges"][2] = {"a"}; }},
      {"model.merges[3]", [](Json& j) { j["model"]["merges"][3] = "a b c"; }},
      {"model.merges[1]: \"\xE2\x98\x83\"",
       [](Json& j) {
         j["model"]["merges"][1] = {"\xE2\x98\x83", "b"};
       }},
      {"is merge 1 of", [](Json& j) { j["model"]["merges"].push_back(j["model"]["merges"][0]); }},
      {"byte 0x41", [](Json& j) { j["model"]["vocab"].erase("A"); }},
      {"token \"A\": the id -1", [](Json& j) { j["model"]["vocab"]["A"] = -1; }},
      {"another token's", [](Json& j) { j["model"]["vocab"]["A"] = 1; }},
      {"out of proportion", [](Json& j) { j["model"]["vocab"]["A"] = 2000000000; }},
      {"added_tokens[0] has no", [](Json& j) { j["added_tokens"][0].erase("id"); }},
      {"added_tokens[0]: \"<|endoftext|>\" has the id",
       [](Json& j) { j["added_tokens"][0]["id"] = 5; }},
      {"out of range",
       [](Json& j) {
         j["added_tokens"].push_back({{"id", 1000000}, {"content", "<x>"}});
       }},
      {"is empty",
       [](Json& j) {
         j["added_tokens"].push_back({{"id", 700}, {"content", ""}});
       }},
      {"pre_tokenizer is no", [](Json& j) { j["pre_tokenizer"] = nullptr; }},
  };
  for (const auto& [part, alter] : cases) {
    const std::string message = refusal<DataError>(alter);
    expect_names(message, part);
    expect_names(message, path("tokenizer.json"));
  }
}

TEST_F(BpeFilesTest, RefusesMalformedMergesByLine) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"#version: 0.2\nh e\nab\n", "line 3"},
      {"h e\nh  e\n", "line 2"},
      {"h e\n\nh e\n", "line 2"},
      {" h\n", "line 1"},
      {"h e\nh e\n", "line 2"},
      {"t \xF0\x9F\x98\x80\n", "line 1"},
      {"h e\n#version: 0.2 x\n", "line 2"},
      {"t \n", "line 1"},
  };
  for (const auto& [merges, part] : cases) {
    const std::string message = refusal_of_files(vocabulary(), merges);
    expect_names(message, path("merges.txt") + ", " + part);
  }
}

TEST_F(BpeFilesTest, TakesWindowsLineEndsAndAnUnendedLastLine) {
  EXPECT_EQ(refusal_of_files(vocabulary(), "#version: 0.2\r\nh e\r\n\r\n"), "no refusal");
  EXPECT_EQ(refusal_of_files(vocabulary(), "h e"), "no refusal");
  EXPECT_EQ(refusal_of_files(vocabulary(), ""), "no refusal");
}

TEST_F(BpeFilesTest, RefusesWhatIsNoStrictJson) {
  expect_names(refusal_of_files("{\"a\": 1, \"a\": 2}", ""), "\"a\" twice");
  expect_names(refusal_of_files("{\"a\": \n ?", ""), "line 2");
  expect_names(refusal_of_files("{\"\xFF\": 1}", ""), "UTF-8");
  expect_names(refusal_of_files("[1, 2]", ""), "no JSON object");
  expect_names(refusal_of_files("{}", ""), "no JSON object");
  expect_names(refusal_of_files("", ""), "not valid JSON");
  expect_names(refusal_of_files(vocabulary() + std::string("\0, hidden", 9), ""), "is zero");
  expect_names(refusal_of_files(std::string(100000, '['), ""), "nested deeper");
}

TEST(ShownTextTest, ShowsTextFromStrangersHarmlessly) {
  EXPECT_EQ(in_quotes("a\u00e9"), "\"a\u00e9\"");
  EXPECT_EQ(printable("\x1B[2J\n\xFF"), "\\x1B[2J\\x0A\\xFF");
  EXPECT_EQ(printable("a\u00e9b", 2), "a...");
  EXPECT_EQ(printable(std::string(1000, 'x')), std::string(kMostShown, 'x') + "...");
}

TEST_F(BpeFilesTest, NamesWhatIsNotThere) {
  expect_names(refusal_of<DataError>([&] { BpeTokenizer::from_folder(folder_.string()); }),
               "holds no tokenizer");
  expect_names(refusal_of<DataError>([&] { BpeTokenizer::from_files(path("a"), path("b")); }),
               path("a") + " does not exist");
  expect_names(refusal_of<DataError>([&] { BpeTokenizer::from_tokenizer_json(folder_.string()); }),
               "no regular file");
}

TEST_F(BpeFilesTest, APathThatCannotBeFollowedIsNotSaidToBeAbsent) {
  std::filesystem::create_symlink("loop.json", folder_ / "loop.json");
  const std::string message =
      refusal_of<DataError>([&] { BpeTokenizer::from_tokenizer_json(path("loop.json")); });
  expect_names(message, "cannot be read");
}

TEST_F(BpeFilesTest, RefusesASpecialTokenThatIsNoEntry) {
  const std::string vocab = write("vocab.json", vocabulary());
  const std::string merges = write("merges.txt", "");
  const auto read = [&](const std::string& special) {
    return [=] { BpeTokenizer::from_files(vocab, merges, {.special_tokens = {{special}}}); };
  };
  expect_names(refusal_of<InvalidArgument>(read("<s>")), "\"<s>\"");
  EXPECT_EQ(refusal_of<InvalidArgument>(read("the")), "no refusal");
}

}  // namespace
}  // namespace hydra
