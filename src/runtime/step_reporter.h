#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hydra/core/clock.h"
#include "hydra/core/ids.h"
#include "hydra/core/inbox.h"
#include "hydra/core/log.h"
#include "hydra/engine/step_metrics.h"
#include "hydra/report/event_file.h"
#include "hydra/report/metrics_file.h"

namespace hydra {

/// Writes the steps of a run's jobs to files, on a thread of its own.
///
/// A file that cannot be written any more is given up, which the log says once; training goes on.
/// Nobody ever waits for a drive here: while `most_waiting` steps wait for one, further ones are
/// dropped, which the log says when it begins, and at the end with their number.
/// Thread safety: `step` and `ended` are thread-safe. Destruction finishes.
class StepReporter {
 public:
  struct Options {
    std::string metrics_file;           ///< JSON lines; empty: none
    std::string tensorboard_directory;  ///< a run per job; empty: none
    LogSink* log = nullptr;             ///< borrowed
    std::size_t most_waiting = 1 << 14;
    Nanoseconds patience{std::chrono::seconds(10)};  ///< with a pipe that nobody reads
  };

  /// Errors: SystemError when a file or folder cannot be made, or no thread started.
  explicit StepReporter(Options options);
  ~StepReporter();
  StepReporter(const StepReporter&) = delete;
  StepReporter& operator=(const StepReporter&) = delete;

  void step(JobId job, const std::string& name, const StepMetrics& metrics);
  /// No more steps of the job come.
  void ended(JobId job);
  /// Writes what it was given, closes the files and returns what is missing in which, for people.
  /// Idempotent. Blocks: on the drive, and on a pipe for its patience.
  const std::vector<std::string>& finish() noexcept;

 private:
  struct Entry {
    JobId job;
    std::string name;
    std::optional<StepMetrics> metrics;  ///< none: the job has ended
    double wall_time = 0;
  };

  void run();
  void write(const Entry& entry);
  void write_line(const Entry& entry);
  void write_event(const Entry& entry);
  void flush_events();
  void close_files();
  void give_up(const std::string& what, const std::exception& error);

  Options options_;
  std::optional<MetricsFile> lines_;
  std::map<JobId, EventFile> events_;  ///< of jobs that have not ended
  bool write_events_;
  std::vector<std::string> lost_;  ///< the writer's until it has ended
  Inbox<Entry> inbox_;
  std::atomic<std::int64_t> dropped_{0};
  std::thread thread_;
};

}  // namespace hydra
