#pragma once

#include <cstdint>
#include <functional>
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

/// What a terminal shows at once, in characters.
struct TerminalSize {
  int columns = 80;
  int rows = 24;
};

/// Draws one bar per job on a terminal (redrawn in place), or one plain line per change elsewhere.
///
/// No line is wider than the terminal and no more are drawn than it has rows: what has no row of
/// its own is counted in the last one ("… and 9 more: 7 running, 2 queued"). The size is asked for
/// before each drawing, so a window that is resized is followed.
///
/// Thread safety: confined to one thread.
class ProgressView {
 public:
  /// Says how large the terminal is now.
  using SizeOf = std::function<TerminalSize()>;

  /// With `terminal`: redraws in place with bars. Without: plain lines, at most one per job and
  /// `interval`.
  ProgressView(std::ostream& out, SizeOf terminal, Nanoseconds interval);
  ~ProgressView();
  void show(const std::vector<JobProgress>& jobs, Nanoseconds now);
  /// Draws the last state and leaves the cursor below it.
  void finish(const std::vector<JobProgress>& jobs, Nanoseconds now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
