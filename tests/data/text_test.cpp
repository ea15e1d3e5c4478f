#include "hydra/data/text.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "hydra/core/error.h"

namespace hydra {
namespace {

std::string every_byte() {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  return text;
}

/// Returns the message of the DataError that reading `path` ends with, or "" when it ends well.
std::string read_error(const std::string& path) {
  try {
    read_tokens(path, ByteTokenizer());
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

void expect_names(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
}

class ReadTokensTest : public ::testing::Test {
 protected:
  ReadTokensTest() {
    // One folder per test: CTest may run several at once.
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("hydra_text_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~ReadTokensTest() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return (folder_ / "text.txt").string(); }

  std::vector<std::int32_t> written_and_read(const std::string& content,
                                             TextEncoding encoding = TextEncoding::kUtf8) const {
    std::ofstream(path(), std::ios::binary) << content;
    return read_tokens(path(), ByteTokenizer(), encoding);
  }

  /// The message of the error that reading a file of this content ends with.
  std::string refusal_of(const std::string& content) const {
    std::ofstream(path(), std::ios::binary) << content;
    return read_error(path());
  }

  std::filesystem::path folder_;
};

TEST(ByteTokenizerTest, EveryByteIsATokenOfItsOwnValue) {
  const std::vector<std::int32_t> tokens = ByteTokenizer().encode(every_byte());
  ASSERT_EQ(tokens.size(), 256U);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(tokens[i], static_cast<std::int32_t>(i));
    EXPECT_LT(tokens[i], ByteTokenizer().vocabulary_size());
  }
}

TEST(ByteTokenizerTest, EveryByteComesBackUnchanged) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(every_byte())), every_byte());
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(ByteTokenizerTest, TokensThatAreNoBytesAreRefusedByNumber) {
  for (const std::int32_t token : {-1, 256}) {
    try {
      ByteTokenizer().decode({65, token});
      ADD_FAILURE() << token << " was decoded";
    } catch (const InvalidArgument& error) {
      expect_names(error.what(), std::to_string(token));
    }
  }
}

TEST_F(ReadTokensTest, AFileOfOneByteIsOneToken) {
  EXPECT_EQ(written_and_read("a"), (std::vector<std::int32_t>{97}));
}

TEST_F(ReadTokensTest, BytesThatAreNotUtf8AreKept) {
  // Zero bytes, lone continuation bytes and both kinds of line end among them.
  const std::string content = "\xff\xfe\r\n\x80" + every_byte() + "\xc3";
  EXPECT_EQ(ByteTokenizer().decode(written_and_read(content, TextEncoding::kBytes)), content);
  const std::string latin1 = "caf\xe9 \x80\xff";
  EXPECT_EQ(ByteTokenizer().decode(written_and_read(latin1)), latin1);
}

TEST_F(ReadTokensTest, FilesThatAreKnownToBeNoTextAreRefusedByWhatTheyAre) {
  using namespace std::string_literals;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132735\n";
  expect_names(refusal_of(pointer), "git lfs pull");
  expect_names(refusal_of("\xFF\xFEh\0i\0"s), "UTF-16");
  expect_names(refusal_of("\xFE\xFF\0h\0i"s), "UTF-16");
  expect_names(refusal_of("\xFF\xFE\0\0h\0\0\0"s), "UTF-32");
  expect_names(refusal_of("h\0i\0"s), "0 at offset 1");
  expect_names(refusal_of("PK\3\4..."), "zip");
  expect_names(refusal_of("\x1f\x8b..."), "gzip");
  expect_names(refusal_of("%PDF-1.7"), "PDF");
  for (const std::string& content : {pointer, "h\0i\0"s}) {
    EXPECT_EQ(ByteTokenizer().decode(written_and_read(content, TextEncoding::kBytes)), content);
    expect_names(refusal_of(content), "\"bytes\"");
  }
}

TEST_F(ReadTokensTest, AByteOrderMarkIsSkippedAndReported) {
  std::ofstream(path(), std::ios::binary) << "\xEF\xBB\xBFtext";
  const TextFile file = read_text(path());
  EXPECT_EQ(file.text, "text");
  EXPECT_TRUE(file.had_byte_order_mark);
  EXPECT_FALSE(read_text(path(), TextEncoding::kBytes).had_byte_order_mark);
  EXPECT_EQ(read_text(path(), TextEncoding::kBytes).text.size(), 7U);
  expect_names(refusal_of("\xEF\xBB\xBF"), "nothing else");
}

TEST_F(ReadTokensTest, ALargeFileIsReadWhole) {
  std::string content;
  while (content.size() < 3'000'000) content += every_byte() + "x";
  EXPECT_EQ(ByteTokenizer().decode(written_and_read(content, TextEncoding::kBytes)), content);
}

TEST_F(ReadTokensTest, AMissingFileIsNamed) {
  expect_names(read_error(path()), path() + " does not exist");
}

TEST_F(ReadTokensTest, AnEmptyFileIsNamed) {
  std::ofstream(path(), std::ios::binary).close();
  expect_names(read_error(path()), path() + " is empty");
}

TEST_F(ReadTokensTest, ADirectoryIsNamed) {
  expect_names(read_error(folder_.string()), folder_.string() + " is a directory");
}

TEST_F(ReadTokensTest, ADeviceIsRefusedInsteadOfReadWithoutEnd) {
  expect_names(read_error("/dev/null"), "/dev/null is not a regular file");
}

TEST_F(ReadTokensTest, APathThatCannotBeFollowedIsNotCalledMissing) {
  std::filesystem::create_symlink(path(), path());
  expect_names(read_error(path()), path() + " cannot be read: ");
}

TEST_F(ReadTokensTest, AFileWithoutPermissionCannotBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read any file";
  std::ofstream(path(), std::ios::binary) << "secret";
  ASSERT_EQ(chmod(path().c_str(), 0), 0);
  expect_names(read_error(path()), path() + " cannot be read: ");
}

TEST_F(ReadTokensTest, AFailedReadIsNotTakenForTheEndOfTheFile) {
  // A regular file that opens, and whose first page is never there to read.
  const std::string unreadable = "/proc/self/mem";
  if (!std::ifstream(unreadable)) GTEST_SKIP() << unreadable << " does not open here";
  expect_names(read_error(unreadable), "reading the text file " + unreadable + " failed: ");
}

}  // namespace
}  // namespace hydra
