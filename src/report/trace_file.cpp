#include "hydra/report/trace_file.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "hydra/core/mutex.h"
#include "hydra/report/output_file.h"

namespace hydra {
namespace {

using Json = nlohmann::ordered_json;

const char* phase_of(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::kSpan:
      return "X";
    case TraceEvent::Kind::kInstant:
      return "i";
    case TraceEvent::Kind::kCounter:
      return "C";
    case TraceEvent::Kind::kFlowStart:
      return "s";
    case TraceEvent::Kind::kFlowEnd:
      return "f";
  }
  return "i";
}

double microseconds(Nanoseconds time) { return static_cast<double>(time.count()) / 1e3; }

Json to_object(const TraceEvent& event, int track) {
  Json json{{"ph", phase_of(event.kind)},      {"pid", 1},           {"tid", track},
            {"ts", microseconds(event.start)}, {"name", event.name}, {"cat", event.category}};
  if (event.kind == TraceEvent::Kind::kSpan) json["dur"] = microseconds(event.duration);
  if (event.kind == TraceEvent::Kind::kInstant) json["s"] = "t";
  if (event.kind == TraceEvent::Kind::kCounter) json["args"] = {{"value", event.value}};
  const bool flow_end = event.kind == TraceEvent::Kind::kFlowEnd;
  if (flow_end || event.kind == TraceEvent::Kind::kFlowStart) json["id"] = event.flow;
  if (flow_end) json["bp"] = "e";
  for (const auto& [key, value] : event.arguments) json["args"][key] = value;
  return json;
}

}  // namespace

struct TraceFile::Impl {
  explicit Impl(std::string path) : file(std::move(path)) {}

  const OutputFile file;
  Mutex mutex;
  std::vector<TraceEvent> events HYDRA_GUARDED_BY(mutex);
};

TraceFile::TraceFile(std::string path) : impl_(std::make_unique<Impl>(std::move(path))) {}

TraceFile::~TraceFile() = default;

bool TraceFile::enabled() const noexcept { return true; }

void TraceFile::record(TraceEvent event) noexcept {
  MutexLock lock(impl_->mutex);
  impl_->events.push_back(std::move(event));
}

void TraceFile::write() {
  std::vector<TraceEvent> events;
  {
    MutexLock lock(impl_->mutex);
    events = impl_->events;
  }
  std::map<std::string, int> tracks;
  for (const TraceEvent& event : events) tracks.emplace(event.track, 0);
  int next = 1;
  Json list = Json::array();
  for (auto& [name, number] : tracks) {
    number = next++;
    list.push_back({{"ph", "M"},
                    {"pid", 1},
                    {"tid", number},
                    {"name", "thread_name"},
                    {"args", {{"name", name}}}});
  }
  for (const TraceEvent& event : events) {
    list.push_back(to_object(event, tracks.at(event.track)));
  }
  const Json file{{"traceEvents", std::move(list)}, {"displayTimeUnit", "ms"}};
  impl_->file.write(file.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace hydra
