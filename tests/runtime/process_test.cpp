// Runtimes as parts of a process: many of them, several at once, forks, names of all kinds.

#include <ATen/Version.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "../engine/engine_fixture.h"
#include "runtime/torch_version.h"

namespace hydra {
namespace {

using testing::small_job;

std::ptrdiff_t entries_of(const char* directory) {
  return std::distance(std::filesystem::directory_iterator(directory),
                       std::filesystem::directory_iterator());
}

// Else the check of its version would pass whatever is loaded.
TEST(RuntimeTest, TheLoadedLibTorchNamesTheVersionOfItsHeaders) {
  EXPECT_EQ(torch_version_in(at::show_config()), TORCH_VERSION);
}

TEST(RuntimeTest, FiftyRuntimesLeaveNoThreadAndNoFileBehind) {
  const JobOptions job = small_job("mlp", 60, 2);
  const auto expected = plain(job);
  const auto one = [&] {
    Runtime runtime(test_runtime(2, Bytes(1 << 20)));
    expect_plain_bits(runtime.submit(job), expected);
  };
  one();
  const auto threads = entries_of("/proc/self/task");
  const auto files = entries_of("/proc/self/fd");
  for (int i = 0; i < 50; ++i) one();
  EXPECT_EQ(entries_of("/proc/self/task"), threads);
  EXPECT_EQ(entries_of("/proc/self/fd"), files);
}

TEST(RuntimeTest, TwoRuntimesInOneProcessShareNothing) {
  const JobOptions job = small_job("gpt2", 61, 4);
  const auto expected = plain(job);
  const Bytes budget = smallest_budget(job);
  Runtime first(test_runtime(1, budget));
  auto second = std::make_unique<Runtime>(test_runtime(2, budget));
  const JobHandle one = first.submit(job);
  const JobHandle two = second->submit(job);
  const JobHandle cancelled = second->submit(small_job("gpt2", 62, 100000));
  expect_plain_bits(two, expected);
  second.reset();  // while the other works
  EXPECT_EQ(cancelled.status().state, JobState::kCancelled);
  expect_plain_bits(one, expected);
  EXPECT_EQ(first.device_stats()[0].in_use, Bytes(0));
}

TEST(RuntimeTest, AForkOfTheParentDisturbsNothing) {
  const JobOptions job = small_job("gpt2", 63, 30);
  const auto expected = plain(job);
  Runtime runtime(test_runtime(2, smallest_budget(job)));
  const JobHandle handle = runtime.submit(job);
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/true", "true", nullptr);
      _exit(1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  expect_plain_bits(handle, expected);
}

TEST(RuntimeTest, JobsAreNamedAsTheUserLikesAndTheSameNameIsNumbered) {
  std::vector<std::string> names{"a/b/../c",
                                 "two words\tand a tab",
                                 "模型 один λ",
                                 "\"quoted\" \\ back",
                                 std::string(255, 'n'),
                                 "same",
                                 "same"};
  Runtime runtime(test_runtime(1, Bytes(1 << 20)));
  for (const std::string& name : names) {
    JobOptions job = small_job("mlp", 64, 1);
    job.name = name;
    runtime.submit(job).get();
  }
  const auto summary = nlohmann::json::parse(to_json(runtime.summary()));
  ASSERT_EQ(summary["jobs"].size(), names.size());
  names.back() = "same (2)";
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(summary["jobs"][i]["name"], names[i]);
    EXPECT_EQ(summary["jobs"][i]["state"], "completed");
  }
}

TEST(RuntimeTest, JobsMayBeSubmittedFromManyThreadsAtOnce) {
  const JobOptions job = small_job("mlp", 65, 3);
  const auto expected = plain(job);
  Runtime runtime(test_runtime(2, smallest_budget(job)));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 3; ++j) expect_plain_bits(runtime.submit(job), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runtime.jobs().size(), 12U);
}

}  // namespace
}  // namespace hydra
