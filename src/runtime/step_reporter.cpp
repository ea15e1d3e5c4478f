#include "runtime/step_reporter.h"

#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "hydra/core/error.h"

namespace hydra {
namespace {

double epoch_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void make_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw SystemError("the TensorBoard directory " + path + " cannot be made: " + error.message());
  }
}

}  // namespace

StepReporter::StepReporter(Options options)
    : options_(std::move(options)),
      write_events_(!options_.tensorboard_directory.empty()),
      inbox_(options_.most_waiting) {
  if (write_events_) make_directory(options_.tensorboard_directory);
  if (!options_.metrics_file.empty()) lines_.emplace(options_.metrics_file, options_.patience);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw SystemError(std::string("cannot start the metrics' writer: ") + error.what());
  }
}

StepReporter::~StepReporter() { finish(); }

const std::vector<std::string>& StepReporter::finish() noexcept {
  if (!thread_.joinable()) return lost_;
  inbox_.close();
  thread_.join();
  if (dropped_ == 0) return lost_;
  lost_.push_back(std::to_string(dropped_) +
                  " steps are missing from the metrics and events: their drive did not keep up");
  options_.log->log(LogLevel::kError, lost_.back());
  return lost_;
}

void StepReporter::step(JobId job, const std::string& name, const StepMetrics& metrics) {
  if (inbox_.try_push({job, name, metrics, epoch_seconds()}) || dropped_++ > 0) return;
  options_.log->log(LogLevel::kWarning, std::to_string(options_.most_waiting) +
                                            " steps wait for the drive of the metrics and events: "
                                            "further ones are dropped, training goes on");
}

// A job whose end is dropped keeps its file open until the run ends.
void StepReporter::ended(JobId job) { inbox_.try_push({job, {}, {}, 0}); }

void StepReporter::run() {
  while (auto entry = inbox_.pop()) {
    write(*entry);
    while (auto more = inbox_.try_pop()) write(*more);
    flush_events();
  }
  close_files();
}

// The system may tell only here that a write has failed.
void StepReporter::close_files() {
  try {
    if (lines_) lines_->close();
  } catch (const std::exception& error) {
    give_up("metrics", error);
  }
  try {
    for (auto& [job, file] : events_) file.close();
  } catch (const std::exception& error) {
    give_up("TensorBoard events", error);
  }
}

void StepReporter::write(const Entry& entry) {
  write_line(entry);
  write_event(entry);
}

void StepReporter::write_line(const Entry& entry) {
  if (!lines_ || !entry.metrics) return;
  const StepMetrics& metrics = *entry.metrics;
  StepLine line;
  line.job = entry.name;
  line.step = metrics.step;
  line.loss = metrics.loss;
  line.learning_rate = metrics.learning_rate;
  if (metrics.gradient_norm > 0) line.gradient_norm = metrics.gradient_norm;
  line.tokens = metrics.tokens;
  line.seconds = seconds(metrics.end);
  try {
    lines_->append(line);
  } catch (const std::exception& error) {
    lines_.reset();
    give_up("metrics", error);
  }
}

void StepReporter::write_event(const Entry& entry) {
  if (!write_events_) return;
  try {
    auto file = events_.find(entry.job);
    if (!entry.metrics) {
      if (file == events_.end()) return;
      file->second.close();
      events_.erase(file);
      return;
    }
    if (file == events_.end()) {
      file =
          events_.emplace(entry.job, EventFile(options_.tensorboard_directory, entry.name)).first;
    }
    const StepMetrics& metrics = *entry.metrics;
    EventFile& events = file->second;
    events.scalar("train/loss", metrics.step, metrics.loss, entry.wall_time);
    events.scalar("train/learning_rate", metrics.step, metrics.learning_rate, entry.wall_time);
    if (metrics.gradient_norm > 0) {
      events.scalar("train/gradient_norm", metrics.step, metrics.gradient_norm, entry.wall_time);
    }
  } catch (const std::exception& error) {
    write_events_ = false;
    give_up("TensorBoard events", error);
  }
}

void StepReporter::flush_events() {
  if (!write_events_) return;
  try {
    for (auto& [job, file] : events_) file.flush();
  } catch (const std::exception& error) {
    write_events_ = false;
    give_up("TensorBoard events", error);
  }
}

void StepReporter::give_up(const std::string& what, const std::exception& error) {
  lost_.push_back(what + " are incomplete: " + error.what());
  options_.log->log(LogLevel::kWarning,
                    what + " are not written any more, training goes on: " + error.what());
}

}  // namespace hydra
