#include "hydra/report/metrics_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "hydra/core/error.h"
#include "temporary_folder.h"

namespace hydra {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

StepLine example() {
  StepLine line;
  line.job = "gpt2";
  line.step = 3;
  line.loss = 2.5;
  line.learning_rate = 1e-3;
  line.gradient_norm = 0.75;
  line.tokens = 2048;
  line.seconds = 1.25;
  return line;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) found.push_back(line);
  return found;
}

TEST(MetricsFileTest, ALineHasTheDocumentedKeysInOrder) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  file.append(example());
  EXPECT_EQ(contents(folder.path("m")),
            "{\"job\":\"gpt2\",\"step\":3,\"loss\":2.5,\"learning_rate\":0.001,"
            "\"gradient_norm\":0.75,\"tokens\":2048,\"seconds\":1.25}\n");
}

TEST(MetricsFileTest, WhatIsNotFiniteOrNotThereIsNull) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  StepLine line = example();
  line.loss = std::nan("");
  line.learning_rate = std::numeric_limits<double>::infinity();
  line.gradient_norm = -std::numeric_limits<double>::infinity();
  line.seconds = std::nan("");
  file.append(line);
  line.gradient_norm = std::nullopt;
  file.append(line);
  for (const std::string& text : lines(contents(folder.path("m")))) {
    const Json json = Json::parse(text);
    for (const char* key : {"loss", "learning_rate", "gradient_norm", "seconds"}) {
      EXPECT_TRUE(json.at(key).is_null()) << key;
    }
    EXPECT_EQ(json.at("tokens"), 2048);
  }
}

TEST(MetricsFileTest, EveryBitOfANumberIsKept) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  StepLine line = example();
  line.loss = std::nextafter(1.0 / 3.0, 1.0);
  line.step = std::numeric_limits<std::int64_t>::max();
  file.append(line);
  const Json json = Json::parse(contents(folder.path("m")));
  EXPECT_EQ(json["loss"].get<double>(), line.loss);
  EXPECT_EQ(json["step"].get<std::int64_t>(), line.step);
}

TEST(MetricsFileTest, NamesOfAnyBytesStayWithinTheirLine) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  StepLine line = example();
  for (const char* name : {"größe \"x\"\n\t\\", "bad \xff byte", ""}) {
    line.job = name;
    file.append(line);
  }
  const auto found = lines(contents(folder.path("m")));
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(Json::parse(found[0])["job"], "größe \"x\"\n\t\\");
  EXPECT_EQ(Json::parse(found[1])["job"], "bad \uFFFD byte");
  EXPECT_EQ(Json::parse(found[2])["job"], "");
}

TEST(MetricsFileTest, AnExistingFileIsGoneOnWith) {
  TemporaryFolder folder;
  MetricsFile(folder.path("m")).append(example());
  MetricsFile(folder.path("m")).append(example());
  EXPECT_EQ(lines(contents(folder.path("m"))).size(), 2U);
}

TEST(MetricsFileTest, ALineThatACrashLeftHalfDoesNotSpoilTheNext) {
  TemporaryFolder folder;
  std::ofstream(folder.path("m")) << "{\"job\":\"gp";
  MetricsFile file(folder.path("m"));
  file.append(example());
  const auto found = lines(contents(folder.path("m")));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(Json::parse(found[1])["job"], "gpt2");
}

/// Appends lines as runs have them: many jobs, numbers that grow, now and then a longer name.
void append_varied(MetricsFile& file, int count) {
  for (int i = 0; i < count; ++i) {
    StepLine line = example();
    line.job = "job " + std::to_string(i % 7);
    if (i % 500 == 499 && i < 12000) line.job += std::string(static_cast<std::size_t>(i) / 10, 'x');
    line.step = i;
    line.loss = 1.0 / (i + 1);
    if (i % 3 == 0) line.gradient_norm = std::sqrt(i);
    line.seconds = i * 1e-3;
    file.append(line);
  }
}

TEST(MetricsFileTest, NoObjectCrossesAPageAndSpacesAreFew) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  append_varied(file, 30000);
  const std::string text = contents(folder.path("m"));
  std::size_t at = 0;
  std::size_t spaces = 0;
  int steps = 0;
  for (const std::string& line : lines(text)) {
    const std::size_t begin = at + line.find('{');
    const std::size_t end = at + line.rfind('}');
    EXPECT_EQ(begin / 4096, end / 4096) << line;
    EXPECT_EQ(Json::parse(line)["step"], steps++);
    const std::size_t last = at + line.size();
    EXPECT_TRUE(begin > at || at / 4096 == last / 4096) << line;
    spaces += line.size() - (end - begin + 1);
    at = last + 1;
  }
  EXPECT_EQ(steps, 30000);
  EXPECT_LT(spaces, text.size() / 2);
}

TEST(MetricsFileTest, ALineLongerThanAllBeforeStartsOnTheNextPageBehindSpaces) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  StepLine line = example();
  while (contents(folder.path("m")).size() < 2000) file.append(line);
  const std::size_t before = contents(folder.path("m")).size();
  line.job = std::string(2100, 'x');
  file.append(line);
  const std::string text = contents(folder.path("m"));
  EXPECT_EQ(text.find_first_not_of(' ', before), 4096U);
  EXPECT_EQ(Json::parse(text.substr(before))["job"], line.job);
}

TEST(MetricsFileTest, ALineBeyondAPageIsWrittenAllTheSame) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  StepLine line = example();
  file.append(line);
  line.job = std::string(10000, 'x');
  file.append(line);
  file.append(example());
  const auto found = lines(contents(folder.path("m")));
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(Json::parse(found[1])["job"], line.job);
  EXPECT_EQ(Json::parse(found[2])["job"], "gpt2");
}

// Reads as fast as it can what another thread appends. With lines placed one after the other
// this meets half lines by the thousand.
TEST(MetricsFileTest, AFollowerNeverSeesPartOfAnObject) {
  TemporaryFolder folder;
  const std::string path = folder.path("m");
  MetricsFile file(path);
  std::atomic<bool> done{false};
  std::int64_t reads = 0;
  std::string half;
  std::thread follower([&] {
    const int input = ::open(path.c_str(), O_RDONLY);
    std::string buffer(1 << 20, '\0');
    off_t at = 0;
    for (bool last = false; !last;) {
      last = done.load();
      for (ssize_t got = 1; got > 0;) {
        got = ::pread(input, buffer.data(), buffer.size(), at);
        const std::string_view seen(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
        const std::size_t end = seen.rfind('\n') + 1;  // 0 when there is none
        const std::string_view rest = seen.substr(end);
        if (rest.find_first_not_of(' ') != std::string_view::npos) half = rest;
        if (got > 0) ++reads;
        if (end == 0) break;  // spaces alone: their line is on its way
        at += static_cast<off_t>(end);
      }
    }
    ::close(input);
  });
  append_varied(file, 30000);
  done = true;
  follower.join();
  EXPECT_EQ(half, "");
  EXPECT_GT(reads, 0);
}

TEST(MetricsFileTest, AFileThatCannotBeMadeIsAnErrorWithPathAndCause) {
  EXPECT_THAT(message_of<SystemError>([] { MetricsFile("/no/such/folder/m"); }),
              AllOf(HasSubstr("/no/such/folder/m"), HasSubstr("No such file")));
  TemporaryFolder folder;
  EXPECT_THAT(message_of<SystemError>([&] { MetricsFile(folder.path()); }),
              AllOf(HasSubstr(folder.path()), HasSubstr("Is a directory")));
}

TEST(MetricsFileTest, AFullDriveIsAnErrorWithPathAndCause) {
  MetricsFile file("/dev/full");
  EXPECT_THAT(message_of<SystemError>([&] { file.append(example()); }),
              AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"), HasSubstr("make room")));
}

TEST(MetricsFileTest, ALineThatDoesNotFitIsTakenBackAndTheNextIsWhole) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  file.append(example());
  const std::string before = contents(folder.path("m"));
  {
    FileSizeLimit limit(before.size() + 20);  // within the second line
    EXPECT_THAT(message_of<SystemError>([&] { file.append(example()); }),
                AllOf(HasSubstr(folder.path("m")), HasSubstr("File too large")));
  }
  EXPECT_EQ(contents(folder.path("m")), before);
  file.append(example());
  EXPECT_EQ(contents(folder.path("m")), before + before);
}

TEST(MetricsFileTest, NothingFollowsACloseButAnotherOne) {
  TemporaryFolder folder;
  MetricsFile file(folder.path("m"));
  file.close();
  file.close();
  EXPECT_THROW(file.append(example()), InternalError);
}

StepLine numbered(const std::string& job, std::int64_t step) {
  StepLine line = example();
  line.job = job;
  line.step = step;
  return line;
}

TEST(MetricsFileTest, TwoProcessesThatAppendToOneFileLoseNoLine) {
  TemporaryFolder folder;
  const std::string path = folder.path("m");
  constexpr std::int64_t kLines = 3000;
  const auto write = [&](const std::string& job) {
    MetricsFile file(path);
    for (std::int64_t step = 0; step < kLines; ++step) file.append(numbered(job, step));
  };
  std::vector<pid_t> children;
  for (const std::string& job : {std::string("a"), std::string(200, 'b')}) {
    const pid_t child = fork();
    if (child == 0) {
      write(job);
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::map<std::string, std::int64_t> next;
  std::int64_t at = 0;
  for (const std::string& line : lines(contents(path))) {
    const Json object = Json::parse(line);
    ASSERT_EQ(object["step"], next[object["job"].get<std::string>()]++);
    const auto begin = at + static_cast<std::int64_t>(line.find('{'));
    const auto end = at + static_cast<std::int64_t>(line.rfind('}'));
    ASSERT_EQ(begin / 4096, end / 4096) << "it crosses a page";
    at += static_cast<std::int64_t>(line.size()) + 1;
  }
  EXPECT_EQ(next["a"], kLines);
  EXPECT_EQ(next[std::string(200, 'b')], kLines);
}

TEST(MetricsFileTest, TakingALineBackLeavesTheLinesOfOthers) {
  TemporaryFolder folder;
  const std::string path = folder.path("m");
  MetricsFile mine(path);
  mine.append(numbered("mine", 0));
  MetricsFile other(path);
  for (std::int64_t step = 0; step < 20; ++step) other.append(numbered("other", step));
  const std::string before = contents(path);
  {
    const FileSizeLimit limit(before.size() + 10);  // room for the beginning of a line
    EXPECT_THROW(mine.append(numbered("mine", 1)), SystemError);
  }
  EXPECT_EQ(contents(path), before);
  mine.append(numbered("mine", 2));
  EXPECT_EQ(lines(contents(path)).size(), 22U);
}

TEST(MetricsFileTest, APipeThatNobodyReadsIsAnErrorAfterTheGivenTime) {
  TemporaryFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  MetricsFile file(path, std::chrono::milliseconds(50));
  const std::string message = message_of<SystemError>([&] {
    for (std::int64_t step = 0; step < 100000; ++step) file.append(numbered("job", step));
  });
  EXPECT_THAT(message, AllOf(HasSubstr(path), HasSubstr("nobody reads it")));
}

TEST(MetricsFileTest, APipeThatIsReadSlowlyGetsEveryLine) {
  TemporaryFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  MetricsFile file(path);
  std::size_t found = 0;
  std::thread reader([&] {
    const int pipe = open(path.c_str(), O_RDONLY);
    char bytes[1 << 12];
    while (found < 2000) {
      const ssize_t got = read(pipe, bytes, sizeof bytes);
      found += static_cast<std::size_t>(std::count(bytes, bytes + got, '\n'));
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    ::close(pipe);
  });
  for (std::int64_t step = 0; step < 2000; ++step) file.append(numbered("job", step));
  reader.join();
  EXPECT_EQ(found, 2000U);
}

}  // namespace
}  // namespace hydra
