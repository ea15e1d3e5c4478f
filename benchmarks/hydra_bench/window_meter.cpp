#include "window_meter.h"

#include <algorithm>
#include <utility>

namespace bench {
namespace {

using hydra::Bytes;
using hydra::Nanoseconds;
using hydra::TraceEvent;

Nanoseconds end_of(const TraceEvent& event) { return event.start + event.duration; }

/// Returns how much of the event lies in [begin, end).
Nanoseconds inside(const TraceEvent& event, Nanoseconds begin, Nanoseconds end) {
  return std::max(Nanoseconds(0), std::min(end_of(event), end) - std::max(event.start, begin));
}

Bytes bytes_of(const TraceEvent& event) {
  for (const auto& [key, value] : event.arguments) {
    if (key == "bytes") return Bytes(std::stoll(value));
  }
  return Bytes(0);
}

}  // namespace

WindowFigures& WindowFigures::operator+=(const WindowFigures& other) {
  forward_seconds += other.forward_seconds;
  unit_seconds += other.unit_seconds;
  copy_seconds += other.copy_seconds;
  hidden_copy_seconds += other.hidden_copy_seconds;
  for (const auto& [track, link] : other.links) {
    links[track].bytes += link.bytes;
    links[track].seconds += link.seconds;
  }
  return *this;
}

void WindowMeter::record(TraceEvent event) noexcept {
  if (event.kind != TraceEvent::Kind::kSpan) return;
  hydra::MutexLock lock(mutex_);
  if (event.category == "unit") units_.push_back(std::move(event));
  if (event.category == "copy") copies_.push_back(std::move(event));
}

WindowFigures WindowMeter::take(Nanoseconds begin, Nanoseconds end) {
  hydra::MutexLock lock(mutex_);
  WindowFigures figures;
  for (const TraceEvent& unit : units_) {
    const double part = hydra::seconds(inside(unit, begin, end));
    figures.unit_seconds += part;
    if (unit.name.find(" forward ") != std::string::npos) figures.forward_seconds += part;
  }
  for (const TraceEvent& copy : copies_) {
    const double part = hydra::seconds(inside(copy, begin, end));
    if (part <= 0) continue;
    figures.copy_seconds += part;
    for (const TraceEvent& unit : units_) {
      figures.hidden_copy_seconds +=
          hydra::seconds(inside(copy, std::max(begin, unit.start), std::min(end, end_of(unit))));
    }
    auto& link = figures.links[copy.track];
    const double share = part / std::max(hydra::seconds(copy.duration), 1e-12);
    link.bytes +=
        Bytes(static_cast<std::int64_t>(share * static_cast<double>(bytes_of(copy).count())));
    link.seconds += part;
  }
  const auto is_over = [end](const TraceEvent& event) { return end_of(event) <= end; };
  std::erase_if(units_, is_over);
  std::erase_if(copies_, is_over);
  return figures;
}

}  // namespace bench
