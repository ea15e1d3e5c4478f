#include "hydra/report/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "event_records.h"
#include "hydra/core/error.h"
#include "report/utf8.h"
#include "temporary_folder.h"

namespace hydra {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

constexpr double kTime = 1700000000.25;

std::string hex(const std::string& bytes) {
  std::string text;
  char digits[3];
  for (const char byte : bytes) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

// The expected bytes come from TensorBoard 2.21's own messages (SerializeToString) and from a
// CRC-32C that takes one bit at a time.
TEST(EventRecordTest, TheFirstRecordNamesTheVersion) {
  EXPECT_EQ(hex(version_event(1.5)), "09000000000000f83f1a0d627261696e2e4576656e743a32");
}

TEST(EventRecordTest, AScalarIsAnEventWithOneValue) {
  EXPECT_EQ(hex(scalar_event("loss", 300, 2.5, kTime)),
            "0900001040fc54d94110ac022a0d0a0b0a046c6f73731500002040");
}

TEST(EventRecordTest, ANegativeStepHasTenBytesAndAZeroValueIsWritten) {
  EXPECT_EQ(hex(scalar_event("größe", -1, 0.0, kTime)),
            "0900001040fc54d94110ffffffffffffffffff012a100a0e0a076772c3b6c39f651500000000");
}

TEST(EventRecordTest, AZeroStepAndTimeAreLeftOutAndNanIsKept) {
  EXPECT_EQ(hex(scalar_event("l", 0, std::nan(""), 0)), "2a0a0a080a016c150000c07f");
}

TEST(EventRecordTest, WhatIsBeyondAFloatIsInfinite) {
  EXPECT_EQ(scalar_event("l", 1, 1e300, kTime),
            scalar_event("l", 1, std::numeric_limits<double>::infinity(), kTime));
}

TEST(EventRecordTest, ALengthAboveOneByteIsAVarint) {
  const std::string record = scalar_event(std::string(300, 't'), 1, 1, kTime);
  // A summary of 311 = 1 + 2 + 308 bytes, a value of 308 = 1 + 2 + 300 + 5, a tag of 300.
  EXPECT_EQ(hex(record.substr(11, 9)), "2ab7020ab4020aac02");
}

TEST(EventRecordTest, BytesThatAreNotUtf8AreReplacedInATag) {
  EXPECT_EQ(scalar_event("a\xff\xc3", 1, 1, kTime), scalar_event("a\uFFFD\uFFFD", 1, 1, kTime));
}

TEST(EventRecordTest, ARecordIsFramedByItsLengthAndMaskedChecksums) {
  EXPECT_EQ(hex(framed(version_event(1.5))),
            "1800000000000000a37f4b22"
            "09000000000000f83f1a0d627261696e2e4576656e743a32"
            "2a28646c");
  EXPECT_EQ(hex(framed(scalar_event("loss", 300, 2.5, kTime))),
            "1b000000000000001a0d9e13"
            "0900001040fc54d94110ac022a0d0a0b0a046c6f73731500002040"
            "7699db8a");
}

TEST(Utf8Test, WellFormedCharactersAreTakenAndAllElseIsNot) {
  for (const char* text : {"a", "\x7f", "\u0080", "\u07FF", "\u0800", "\uD7FF", "\uE000", "\uFFFF",
                           "\U00010000", "\U0010FFFF"}) {
    EXPECT_EQ(utf8_length(text), std::strlen(text)) << text;
    EXPECT_EQ(utf8_length(std::string(text) + "a"), std::strlen(text)) << text;
  }
  for (const char* text :
       {"\x80", "\xc1\xbf", "\xc3", "\xc3z", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf0\x9f\x98", "\xff"}) {
    EXPECT_EQ(utf8_length(text), 0U) << hex(text);
  }
}

TEST(RunDirectoryTest, ASafeNameIsItsOwnFolder) {
  for (const char* name :
       {"gpt2", "gpt2 rate 0.001", "größe", "模型 é", "a=1,b=[2](x)@y+z_-.", "1"}) {
    EXPECT_EQ(run_directory_name(name), name);
  }
}

// Digests from sha256sum.
TEST(RunDirectoryTest, AnotherNameHasItsDigestBehindIt) {
  EXPECT_EQ(run_directory_name("team/a"), "team_a~65f838a2fbff");
  EXPECT_EQ(run_directory_name(""), "~e3b0c44298fc");
}

TEST(RunDirectoryTest, NothingLeavesTheFolderOrHidesInIt) {
  EXPECT_THAT(run_directory_name(".."), StartsWith("_.~"));
  EXPECT_THAT(run_directory_name("."), StartsWith("_~"));
  EXPECT_THAT(run_directory_name(".hidden"), StartsWith("_hidden~"));
  EXPECT_THAT(run_directory_name("../../etc"), StartsWith("_._.._etc~"));
  EXPECT_THAT(run_directory_name("-rf"), StartsWith("_rf~"));
  EXPECT_THAT(run_directory_name(" a "), StartsWith("_a_~"));
  EXPECT_THAT(run_directory_name(std::string("a\0b\n\u0085", 6)), StartsWith("a_b__~"));
  EXPECT_THAT(run_directory_name("a\xff\xc3"), StartsWith("a__~"));
  EXPECT_THAT(run_directory_name("a~65f838a2fbff"), StartsWith("a_65f838a2fbff~"));
}

TEST(RunDirectoryTest, NamesThatLookAlikeWhenSafeHaveFoldersOfTheirOwn) {
  EXPECT_NE(run_directory_name("a/b"), run_directory_name("a:b"));
  EXPECT_NE(run_directory_name("a/b"), run_directory_name("a_b"));
  const std::string longest(255, 'x');
  EXPECT_NE(run_directory_name(longest + "1"), run_directory_name(longest + "2"));
}

TEST(RunDirectoryTest, ALongNameIsCutAtACharacter) {
  std::string name;
  for (int i = 0; i < 255; ++i) name += "模";
  const std::string folder = run_directory_name(name);
  EXPECT_EQ(folder.size(), 198U + 13U);
  EXPECT_EQ(folder, valid_utf8(folder));
  EXPECT_EQ(run_directory_name(std::string(200, 'x')), std::string(200, 'x'));
  EXPECT_EQ(run_directory_name(std::string(201, 'x')).size(), 213U);
}

TEST(EventFileTest, TheFileHoldsTheVersionAndThenTheScalars) {
  TemporaryFolder folder;
  EventFile file(folder.path("logs"), "team/gpt2 größe");
  file.scalar("loss", 1, 2.5, kTime);
  file.scalar("rate", 1, 1e-3, kTime + 1);
  file.close();
  const auto found = records(contents(file.path()));
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].substr(9), version_event(1).substr(9));
  EXPECT_EQ(found[1], scalar_event("loss", 1, 2.5, kTime));
  EXPECT_EQ(found[2], scalar_event("rate", 1, 1e-3, kTime + 1));
  const std::filesystem::path path = file.path();
  EXPECT_EQ(path.parent_path(), folder.path("logs/" + run_directory_name("team/gpt2 größe")));
  EXPECT_THAT(path.filename().string(),
              MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..+\\.[0-9]+\\.0"));
}

TEST(EventFileTest, ReadersSeeTheVersionAtOnceAndScalarsWithEveryFlush) {
  TemporaryFolder folder;
  EventFile file(folder.path(), "a");
  EXPECT_EQ(records(contents(file.path())).size(), 1U);
  file.scalar("loss", 1, 1, kTime);
  EXPECT_EQ(records(contents(file.path())).size(), 1U);
  file.flush();
  EXPECT_EQ(records(contents(file.path())).size(), 2U);
  file.flush();
  EXPECT_EQ(records(contents(file.path())).size(), 2U);
}

TEST(EventFileTest, WithoutAFlushTheBufferStaysSmall) {
  TemporaryFolder folder;
  EventFile file(folder.path(), "a");
  const std::string tag(1000, 't');
  for (int step = 0; step < 1000; ++step) file.scalar(tag, step, 1, kTime);
  EXPECT_GT(records(contents(file.path())).size(), 900U);
}

TEST(EventFileTest, DestructionWritesWhatIsBuffered) {
  TemporaryFolder folder;
  std::string path;
  {
    EventFile made(folder.path(), "a");
    EventFile file = std::move(made);
    path = file.path();
    file.scalar("loss", 1, 1, kTime);
  }
  EXPECT_EQ(records(contents(path)).size(), 2U);
}

TEST(EventFileTest, FilesOfOneRunAndSecondDoNotMeet) {
  TemporaryFolder folder;
  EventFile first(folder.path(), "a");
  EventFile second(folder.path(), "a");
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(records(contents(first.path())).size(), 1U);
}

TEST(EventFileTest, NothingFollowsACloseButAnotherOne) {
  TemporaryFolder folder;
  EventFile file(folder.path(), "a");
  file.close();
  file.close();
  EXPECT_THROW(file.scalar("loss", 1, 1, kTime), InternalError);
}

TEST(EventFileTest, AFolderThatCannotBeMadeIsAnErrorWithPathAndCause) {
  TemporaryFolder folder;
  std::ofstream(folder.path("taken")) << "a file";
  const auto make = [&] { EventFile(folder.path("taken"), "a"); };
  EXPECT_THAT(message_of<SystemError>(make),
              AllOf(HasSubstr(folder.path("taken/a")), HasSubstr("Not a directory")));
}

TEST(EventFileTest, AFolderThatMayNotBeWrittenToIsAnErrorWithPathAndCause) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("a"));
  std::filesystem::permissions(folder.path("a"), std::filesystem::perms(0555));
  const bool root = ::geteuid() == 0;  // who may write everywhere
  ASSERT_TRUE(!root || ::seteuid(65534) == 0);
  const std::string message = message_of<SystemError>([&] { EventFile(folder.path(), "a"); });
  ASSERT_TRUE(!root || ::seteuid(0) == 0);
  EXPECT_THAT(message, AllOf(HasSubstr(folder.path("a/events")), HasSubstr("Permission denied")));
}

TEST(EventFileTest, AFullDriveIsAnErrorAndTheFileEndsWithAWholeRecord) {
  TemporaryFolder folder;
  EventFile file(folder.path(), "a");
  const std::size_t before = contents(file.path()).size();
  file.scalar("loss", 1, 1, kTime);
  {
    FileSizeLimit limit(before + 20);  // within the second record
    EXPECT_THAT(message_of<SystemError>([&] { file.flush(); }),
                AllOf(HasSubstr(file.path()), HasSubstr("File too large")));
  }
  EXPECT_EQ(contents(file.path()).size(), before);
  file.scalar("loss", 2, 2, kTime);
  file.close();
  const auto found = records(contents(file.path()));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1], scalar_event("loss", 2, 2, kTime));
}

TEST(EventFileTest, AFailingCloseTellsAndClosesAllTheSame) {
  TemporaryFolder folder;
  EventFile file(folder.path(), "a");
  file.scalar("loss", 1, 1, kTime);
  FileSizeLimit limit(1);
  EXPECT_THROW(file.close(), SystemError);
  file.close();
}

}  // namespace
}  // namespace hydra
