#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "hydra/core/clock.h"

namespace hydra {

/// Where one job stands.
struct JobProgress {
  std::string name;
  std::string state;  ///< "queued", "running", "completed", "stopped", "failed", "cancelled"
  std::int64_t step = 0;
  std::int64_t max_steps = 0;
  double loss = 0;  ///< of the last finished step; NaN before the first
  double learning_rate = 0;
  double tokens_per_second = 0;
  Nanoseconds time_left{0};
  std::string reason;
};

/// Draws one bar per job on a terminal (redrawn in place), or one plain line per change elsewhere.
///
/// Thread safety: confined to one thread.
class ProgressView {
 public:
  /// `terminal`: redraw in place with bars; else plain lines, at most one per job and `interval`.
  ProgressView(std::ostream& out, bool terminal, int columns, Nanoseconds interval);
  ~ProgressView();
  void show(const std::vector<JobProgress>& jobs, Nanoseconds now);
  /// Draws the last state and leaves the cursor below it.
  void finish(const std::vector<JobProgress>& jobs, Nanoseconds now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
