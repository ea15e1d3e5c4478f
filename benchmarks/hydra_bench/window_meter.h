#pragma once

#include <map>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"
#include "hydra/core/mutex.h"
#include "hydra/core/trace.h"

namespace bench {

/// What happened in a span of a run.
struct WindowFigures {
  double forward_seconds = 0;      ///< inside forward units: what recomputation does once more
  double unit_seconds = 0;         ///< inside units of any kind
  double copy_seconds = 0;         ///< of both directions
  double hidden_copy_seconds = 0;  ///< of these, while a unit computed
  struct Link {
    hydra::Bytes bytes;
    double seconds = 0;
  };
  std::map<std::string, Link> links;  ///< by track: "cpu0 upload"

  WindowFigures& operator+=(const WindowFigures& other);
};

/// A trace sink that keeps units and copies and adds them up over windows of time.
class WindowMeter final : public hydra::TraceSink {
 public:
  bool enabled() const noexcept override { return true; }
  void record(hydra::TraceEvent event) noexcept override;

  /// Adds up what lies in [begin, end) of one device's time and forgets everything before `end`.
  /// A copy that crosses a border counts with the share of it inside.
  WindowFigures take(hydra::Nanoseconds begin, hydra::Nanoseconds end);

 private:
  hydra::Mutex mutex_;
  std::vector<hydra::TraceEvent> units_ HYDRA_GUARDED_BY(mutex_);
  std::vector<hydra::TraceEvent> copies_ HYDRA_GUARDED_BY(mutex_);
};

}  // namespace bench
