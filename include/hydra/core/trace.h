#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hydra/core/clock.h"

namespace hydra {

/// One entry of the run's trace.
struct TraceEvent {
  enum class Kind { kSpan, kInstant, kCounter, kFlowStart, kFlowEnd };

  Kind kind = Kind::kSpan;
  std::string track;  ///< the row it is drawn on: "cpu0 compute", "cpu0 upload", "host updates"…
  std::string category;  ///< "unit", "copy", "update", "wait", "decision", "memory"
  std::string name;      ///< "job-2 forward shard 3"
  Nanoseconds start{0};
  Nanoseconds duration{0};  ///< spans alone
  std::int64_t flow = 0;    ///< flows alone: joins a start with an end
  double value = 0;         ///< counters alone
  std::vector<std::pair<std::string, std::string>> arguments;
};

/// Makes one end of a flow, an arrow from the span at the start's time and track to the one at the
/// end's.
inline TraceEvent flow_event(TraceEvent::Kind end, std::string track, Nanoseconds time,
                             std::int64_t flow) {
  TraceEvent event;
  event.kind = end;
  event.track = std::move(track);
  event.category = "flow";  // viewers join ends of one category, name and number
  event.name = "use";
  event.start = time;
  event.flow = flow;
  return event;
}

/// Receives trace events. Thread safety: thread-safe. Blocks: briefly, on a leaf lock.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// False when nobody listens, so that callers need not build events.
  virtual bool enabled() const noexcept = 0;
  virtual void record(TraceEvent event) noexcept = 0;
};

/// A sink that drops everything.
class NullTraceSink final : public TraceSink {
 public:
  bool enabled() const noexcept override { return false; }
  void record(TraceEvent) noexcept override {}
};

}  // namespace hydra
