// How much the storage tier takes, moves and keeps: of drives, of links, of the process.

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "engine_fixture.h"
#include "hydra/models/mlp.h"
#include "hydra/testing/owned_store.h"
#include "hydra/testing/random_data.h"

namespace hydra {
namespace {

using testing::small_job;
using testing::small_job_names;

RuntimeOptions with_storage(RuntimeOptions options, Bytes host_cache) {
  options.storage.drives = {{"memory", Bytes(256 << 20)}};
  options.storage.kind = BlockIoKind::kMemory;
  options.storage.host_cache = host_cache;
  return options;
}

Bytes written(const Runtime& runtime) {
  for (const auto& link : runtime.summary().links) {
    if (link.name == "host to storage") return link.bytes;
  }
  return Bytes(-1);
}

TEST(StorageAmountsTest, WhatAJobTakesOfTheDrivesDependsOnItAlone) {
  const JobOptions job = small_job("gpt2", 330, 3);
  const auto expected = plain(job);
  const Bytes device = smallest_budget(job);
  std::optional<Bytes> taken;
  const testing::TemporaryDirectory folder;
  for (const int threads : {1, 4}) {
    for (const int drives : {1, 3}) {
      RuntimeOptions options = with_storage(test_runtime(1, device), Bytes(0));
      options.update_threads = threads;
      if (drives == 3) {
        options.storage.kind = BlockIoKind::kThreads;
        options.storage.drives.assign(3, {folder.path(), Bytes(8 << 20)});
      }
      const Plan plan = Runtime(options).plan(job);
      if (!taken) taken = plan.storage;
      EXPECT_EQ(plan.storage, *taken);
      options.storage.host_cache = plan.host_cache;
      Runtime runtime(std::move(options));
      expect_plain_bits(runtime.submit(job), expected);
      EXPECT_EQ(runtime.summary().storage_peak, *taken);
    }
  }
}

TEST(StorageAmountsTest, ModelsOfAllShapesShareTheDrives) {
  std::vector<JobOptions> jobs;
  std::vector<testing::PlainResult> expected;
  Bytes device;
  for (const std::string& name : small_job_names()) {
    jobs.push_back(small_job(name, 331, 4));
    expected.push_back(plain(jobs.back()));
    device = std::max(device, smallest_budget(jobs.back()));
  }
  Bytes cache;
  for (const JobOptions& job : jobs) {
    RuntimeOptions options = with_storage(test_runtime(1, device), Bytes(0));
    cache = std::max(cache, Runtime(std::move(options)).plan(job).host_cache);
  }
  Runtime runtime(with_storage(test_runtime(2, device), cache));
  std::vector<JobHandle> handles;
  for (const JobOptions& job : jobs) handles.push_back(runtime.submit(job));
  for (std::size_t i = 0; i < jobs.size(); ++i) expect_plain_bits(handles[i], expected[i]);
  EXPECT_GT(written(runtime), Bytes(0));
}

/// A job of layers of one size.
JobOptions even_job(std::int64_t layers, std::int64_t width, std::int64_t steps) {
  JobOptions job = small_job("mlp", 332, steps);
  MlpOptions options;
  options.widths.assign(static_cast<std::size_t>(layers) + 1, width);
  auto model = make_mlp(options);
  for (std::int64_t i = 1; i < layers; ++i) model->cut_before("fc" + std::to_string(i));
  job.model = model;
  job.data = std::make_shared<testing::RandomRegression>(
      testing::RandomRegression::Options{.seed = 332, .rows = 4, .in = width, .out = width});
  return job;
}

TEST(StorageAmountsTest, TheLessTheHostHoldsTheMoreIsWrittenAndNothingWhenItHoldsAll) {
  const JobOptions job = even_job(48, 32, 6);
  const auto expected = plain(job);
  const Bytes device = smallest_budget(job);
  const Plan without = Runtime(test_runtime(1, device)).plan(job);
  const Plan with = Runtime(with_storage(test_runtime(1, device), Bytes(0))).plan(job);
  const Bytes state = without.host_state - with.host_state;
  std::vector<double> steps;  // written, as a share of all that the drives hold, per step
  for (const int percent : {100, 75, 50, 25}) {
    const Bytes cache = std::max(with.host_cache, Bytes(state.count() * percent / 100));
    Runtime runtime(with_storage(test_runtime(1, device), cache));
    expect_plain_bits(runtime.submit(job), expected);
    steps.push_back(static_cast<double>(written(runtime).count()) /
                    static_cast<double>(with.storage.count()) / 6);
    EXPECT_LE(runtime.host_cache_budget().peak(), cache);
  }
  EXPECT_EQ(steps[0], 0);
  EXPECT_LT(steps[0], steps[1]);
  EXPECT_LT(steps[1], steps[2]);
  EXPECT_LT(steps[2], steps[3]);
  // With half of it at home in the host about half goes out in each step, and a little at first.
  EXPECT_GT(steps[2], 0.4);
  EXPECT_LT(steps[2], 0.75);
}

// Gradients have no place on the drives yet: a third of what the state is stays in the host.
TEST(StorageAmountsTest, SixtyMebibytesOfStateTrainInHalfOfThatOfTheHost) {
  const JobOptions job = even_job(22, 480, 2);  // of 0.9 MiB each, and twice that of moments
  const auto expected = plain(job);
  RuntimeOptions options = with_storage(test_runtime(1, Bytes(8 << 20)), Bytes(8 << 20));
  options.host_memory = Bytes(30 << 20);
  Runtime runtime(std::move(options));
  const JobHandle handle = runtime.submit(job);
  EXPECT_GT(handle.plan().storage, Bytes(55 << 20));
  expect_plain_bits(handle, expected);
  EXPECT_LE(runtime.host_budget().peak() + runtime.host_cache_budget().peak(), Bytes(30 << 20));
  EXPECT_LE(runtime.device_stats()[0].held, Bytes(8 << 20));
}

/// Pages of the process that are in memory, in bytes.
std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// Keeps the process's resident bytes after each step.
class Watcher final : public JobCallbacks {
 public:
  StepDecision on_step(const StepMetrics& metrics) override {
    if (metrics.step >= 100) largest_later = std::max(largest_later, resident_bytes());
    if (metrics.step >= 20 && metrics.step < 100) largest = std::max(largest, resident_bytes());
    return {};
  }
  std::int64_t largest = 0;        // of steps 20 to 99
  std::int64_t largest_later = 0;  // of steps 100 to 299
};

TEST(StorageAmountsTest, TheProcessDoesNotGrowOverThreeHundredStepsOfWriting) {
  JobOptions job = even_job(8, 64, 300);
  const auto watcher = std::make_shared<Watcher>();
  job.callbacks = watcher;
  const Bytes device = smallest_budget(job);
  const testing::TemporaryDirectory folder;
  RuntimeOptions options = with_storage(test_runtime(1, device), Bytes(0));
  options.storage.host_cache = Runtime(options).plan(job).host_cache;
  options.storage.kind = BlockIoKind::kAutomatic;
  options.storage.drives = {{folder.path(), Bytes(8 << 20)}};
  Runtime runtime(std::move(options));
  runtime.submit(job).get();
  EXPECT_GT(written(runtime), Bytes(0));
  EXPECT_LE(watcher->largest_later, watcher->largest + (1 << 20));
}

}  // namespace
}  // namespace hydra
