// What a run's metrics file and TensorBoard directory hold, and what happens when they cannot.

#include "runtime/step_reporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../engine/engine_fixture.h"
#include "../engine/kept_log.h"
#include "../report/event_records.h"
#include "../report/temporary_folder.h"
#include "hydra/report/event_file.h"

namespace hydra {
namespace {

using testing::small_job;
using Json = nlohmann::json;

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream text(contents(path));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

/// The lines of one job, in the order in which they stand.
std::vector<Json> lines_of(const std::vector<Json>& lines, const std::string& job) {
  std::vector<Json> own;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(own),
               [&](const Json& line) { return line["job"] == job; });
  return own;
}

/// Two jobs with a clipped norm and one without.
std::vector<JobOptions> three_jobs() {
  std::vector<JobOptions> jobs;
  for (std::uint64_t i = 0; i < 3; ++i) {
    jobs.push_back(small_job("mlp", 80 + i, 5));
    jobs.back().name = "rate/" + std::to_string(i);
    jobs.back().schedule.peak = 1e-3 * static_cast<double>(i + 1);
    if (i > 0) jobs.back().max_gradient_norm = 0.1;
  }
  return jobs;
}

/// Runs the jobs to their ends, with the runtime's files written.
std::vector<std::vector<StepMetrics>> run(const RuntimeOptions& options,
                                          const std::vector<JobOptions>& jobs) {
  Runtime runtime(options);
  std::vector<JobHandle> handles;
  for (const JobOptions& job : jobs) handles.push_back(runtime.submit(job));
  std::vector<std::vector<StepMetrics>> metrics;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    expect_plain_bits(handles[i], plain(jobs[i]));
    metrics.push_back(handles[i].metrics());
  }
  return metrics;
}

TEST(StepReporterTest, TheMetricsFileHasALinePerJobAndStep) {
  TemporaryFolder folder;
  RuntimeOptions options = test_runtime(2, Bytes(1 << 20));
  options.metrics_file = folder.path("metrics.jsonl");
  const auto jobs = three_jobs();
  const auto metrics = run(options, jobs);
  const auto lines = lines_of(options.metrics_file);
  EXPECT_EQ(lines.size(), 15U);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(jobs[i].name);
    const auto own = lines_of(lines, jobs[i].name);
    ASSERT_EQ(own.size(), metrics[i].size());
    for (std::size_t s = 0; s < own.size(); ++s) {
      const StepMetrics& step = metrics[i][s];
      EXPECT_EQ(own[s]["step"], step.step);
      EXPECT_EQ(own[s]["loss"], step.loss);
      EXPECT_EQ(own[s]["learning_rate"], step.learning_rate);
      EXPECT_EQ(own[s]["gradient_norm"], i > 0 ? Json(step.gradient_norm) : Json());
      EXPECT_EQ(own[s]["tokens"], step.tokens);
      EXPECT_EQ(own[s]["seconds"], seconds(step.end));
    }
  }
}

TEST(StepReporterTest, ASecondRunGoesOnWithTheMetricsFile) {
  TemporaryFolder folder;
  RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
  options.metrics_file = folder.path("metrics.jsonl");
  run(options, three_jobs());
  const std::string before = contents(options.metrics_file);
  run(options, three_jobs());
  const std::string after = contents(options.metrics_file);
  EXPECT_EQ(after.substr(0, before.size()), before);
  EXPECT_EQ(lines_of(options.metrics_file).size(), 30U);
}

/// The one event file of a job.
std::string event_file_of(const std::string& directory, const std::string& job) {
  const auto run = std::filesystem::path(directory) / run_directory_name(job);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(run)) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1U) << job;
  return files.empty() ? "" : files[0];
}

/// A record without its first field, the wall time, which a test does not know.
std::string timeless(const std::string& record) { return record.substr(9); }

TEST(StepReporterTest, TheTensorBoardDirectoryHasAnEventFilePerJob) {
  TemporaryFolder folder;
  RuntimeOptions options = test_runtime(2, Bytes(1 << 20));
  options.tensorboard_directory = folder.path("not/there/yet");
  const auto jobs = three_jobs();
  const auto metrics = run(options, jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(jobs[i].name);
    std::vector<std::string> expected{timeless(version_event(1))};
    const auto expect = [&](const char* tag, std::int64_t step, double value) {
      expected.push_back(timeless(scalar_event(tag, step, value, 1)));
    };
    for (const StepMetrics& step : metrics[i]) {
      expect("train/loss", step.step, step.loss);
      expect("train/learning_rate", step.step, step.learning_rate);
      if (i > 0) expect("train/gradient_norm", step.step, step.gradient_norm);
    }
    std::vector<std::string> found;
    for (const std::string& record :
         records(contents(event_file_of(options.tensorboard_directory, jobs[i].name)))) {
      found.push_back(timeless(record));
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(StepReporterTest, AFileThatCannotBeMadeIsRefusedAtOnceByItsPath) {
  TemporaryFolder folder;
  std::ofstream(folder.path("taken")) << "a file";
  for (const bool events : {false, true}) {
    RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
    const std::string path = folder.path("taken/below");
    (events ? options.tensorboard_directory : options.metrics_file) = path;
    const std::string message = message_of<SystemError>([&] { Runtime runtime(options); });
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_NE(message.find("Not a directory"), std::string::npos) << message;
  }
}

void expect_one_notice(const std::vector<std::string>& lines, const std::string& what,
                       const std::string& path) {
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].find(what + " are not written any more, training goes on: "), 0U) << lines[0];
  EXPECT_NE(lines[0].find(path), std::string::npos) << lines[0];
}

TEST(StepReporterTest, AFullDriveEndsTheMetricsFileWithOneNoticeAndNoJob) {
  TemporaryFolder folder;
  const auto log = std::make_shared<KeptLog>();
  RuntimeOptions options = test_runtime(2, Bytes(1 << 20));
  options.metrics_file = "/dev/full";
  options.tensorboard_directory = folder.path();
  options.log = log;
  const auto jobs = three_jobs();
  run(options, jobs);
  expect_one_notice(log->lines(), "metrics", "/dev/full: No space left on device");
  for (const JobOptions& job : jobs) {
    EXPECT_GT(records(contents(event_file_of(options.tensorboard_directory, job.name))).size(), 10U)
        << "the events are another file";
  }
}

TEST(StepReporterTest, AFolderThatCannotBeMadeEndsTheEventsWithOneNoticeAndNoJob) {
  TemporaryFolder folder;
  const auto log = std::make_shared<KeptLog>();
  const auto jobs = three_jobs();
  const std::string taken = folder.path(run_directory_name(jobs[1].name));
  std::ofstream(taken) << "a file";
  RuntimeOptions options = test_runtime(2, Bytes(1 << 20));
  options.metrics_file = folder.path("metrics.jsonl");
  options.tensorboard_directory = folder.path();
  options.log = log;
  run(options, jobs);
  expect_one_notice(log->lines(), "TensorBoard events", taken);
  EXPECT_EQ(lines_of(options.metrics_file).size(), 15U) << "the metrics are another file";
}

TEST(StepReporterTest, WhatIsLostIsPartOfTheSummaryOfAClosedRuntime) {
  RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
  options.metrics_file = "/dev/full";
  Runtime runtime(options);
  runtime.submit(small_job("mlp", 85, 3)).get();
  runtime.close();
  ASSERT_EQ(runtime.summary().lost_outputs.size(), 1U);
  EXPECT_NE(runtime.summary().lost_outputs[0].find("/dev/full"), std::string::npos);
}

TEST(StepReporterTest, APipeThatNobodyReadsHoldsUpNobodyAndWhatIsMissingIsTold) {
  TemporaryFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int full = open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  while (write(full, "a line\n", 7) == 7) {
  }
  KeptLog log;
  const auto start = std::chrono::steady_clock::now();
  {
    StepReporter reporter({.metrics_file = pipe,
                           .tensorboard_directory = {},
                           .log = &log,
                           .most_waiting = 100,
                           .patience = std::chrono::seconds(1)});
    StepMetrics metrics;
    for (metrics.step = 0; metrics.step < 20000; ++metrics.step) {
      reporter.step(JobId(0), "job", metrics);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
    reporter.ended(JobId(0));
  }
  close(full);
  ASSERT_EQ(log.lines().size(), 3U);
  EXPECT_NE(log.lines()[0].find("further ones are dropped"), std::string::npos) << log.lines()[0];
  EXPECT_NE(log.lines()[1].find("nobody reads it"), std::string::npos) << log.lines()[1];
  EXPECT_NE(log.lines()[2].find(" steps are missing"), std::string::npos) << log.lines()[2];
}

TEST(RunSummaryTest, EachDevicesBusyTimeAndWaitsAddUpToTheWallTime) {
  const JobOptions job = small_job("gpt2", 83, 20);
  Runtime runtime(test_runtime(3, smallest_budget(job)));
  runtime.submit(job);
  runtime.submit(small_job("gpt2", 84, 20));
  runtime.wait_all();
  const RunSummary summary = runtime.summary();
  ASSERT_EQ(summary.devices.size(), 3U);
  double busy = 0;
  for (const RunSummary::Device& device : summary.devices) {
    const double total = device.busy_share * summary.wall_seconds + device.transfer_wait_seconds +
                         device.unit_wait_seconds + device.supply_wait_seconds +
                         device.idle_seconds;
    EXPECT_NEAR(total, summary.wall_seconds, 0.05 * summary.wall_seconds) << device.name;
    busy += device.busy_share;
  }
  EXPECT_GT(busy, 0.0);
}

}  // namespace
}  // namespace hydra
