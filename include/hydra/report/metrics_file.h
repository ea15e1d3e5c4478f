#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "hydra/core/clock.h"

namespace hydra {

/// What a job's finished step came to.
struct StepLine {
  std::string job;  ///< any bytes; those that are not UTF-8 become U+FFFD
  std::int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  double learning_rate = 0;
  std::optional<double> gradient_norm;  ///< before clipping; nothing where it was not computed
  std::int64_t tokens = 0;
  double seconds = 0;  ///< since the start of the run
};

/// Appends one JSON object per line, job and step, for programs that follow a run.
///
/// The format is described in docs/formats/metrics.md. Each line is with the system when `append`
/// returns, and a reader that follows the file never sees part of one. Numbers that are not finite
/// are null. Several objects and processes may append to one file: no line is lost or mixed with
/// another, where the file system has locks. Thread safety: thread-compatible.
class MetricsFile {
 public:
  /// Makes the file or goes on with one that is there; its folder must be. A last line without an
  /// end, left by a crash, gets one. A pipe may take `patience` to accept a line before that fails.
  /// Errors: SystemError with path and cause.
  explicit MetricsFile(const std::string& path, Nanoseconds patience = std::chrono::seconds(10));
  ~MetricsFile();
  MetricsFile(MetricsFile&&) noexcept;
  MetricsFile& operator=(MetricsFile&&) = delete;

  /// Appends a line. Blocks: on the drive, and while another process appends. Errors: SystemError
  /// with path and cause (a full drive, a limit); the line is lost, the file as before and usable.
  /// InternalError after `close`.
  void append(const StepLine& line);

  /// Closes the file; again does nothing. Errors: SystemError when the system tells only now that
  /// something could not be written.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
