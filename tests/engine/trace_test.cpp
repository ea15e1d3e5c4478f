// What the trace of a run says: every unit with its reason, arrows from the copy that fetched a
// shard to the unit that used it, waits by cause, memory per tier.

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "engine_fixture.h"
#include "kept_trace.h"

namespace hydra {
namespace {

using testing::small_job;
using Kind = TraceEvent::Kind;

/// Two jobs on two devices, each sharded as far as it can be.
struct TracedRun {
  TracedRun() {
    const JobOptions first = small_job("gpt2", 80, 3);
    budget = smallest_budget(first);
    RuntimeOptions options = test_runtime(2, budget);
    options.trace = trace;
    Runtime runtime(options);
    JobOptions second = first;
    units = submit_and_wait(runtime, first, second);
  }

  static std::size_t submit_and_wait(Runtime& runtime, const JobOptions& a, JobOptions b) {
    b.name = "other";
    const JobHandle one = runtime.submit(a);
    const JobHandle two = runtime.submit(b);
    one.get();
    two.get();
    const std::size_t shards = one.plan().shards.size();
    return (2 * shards - 1) * 3 * 2;
  }

  Bytes budget;
  std::shared_ptr<KeptTrace> trace = std::make_shared<KeptTrace>();
  std::size_t units = 0;
};

/// True when one of the spans on the event's track covers its time.
bool covered(const TraceEvent& event, const std::vector<TraceEvent>& spans) {
  return std::any_of(spans.begin(), spans.end(), [&](const TraceEvent& span) {
    return span.track == event.track && span.start <= event.start &&
           event.start <= span.start + span.duration;
  });
}

TEST(TraceTest, EveryUnitIsASpanWithTheReasonOfItsChoice) {
  const TracedRun run;
  const auto units = run.trace->of(Kind::kSpan, "unit");
  EXPECT_EQ(units.size(), run.units);
  for (const TraceEvent& unit : units) {
    const auto reason = std::find_if(unit.arguments.begin(), unit.arguments.end(),
                                     [](const auto& entry) { return entry.first == "reason"; });
    ASSERT_NE(reason, unit.arguments.end());
    EXPECT_FALSE(reason->second.empty()) << unit.name;
  }
}

TEST(TraceTest, ArrowsLeadFromTheUploadOfAShardToTheUnitThatUsesItFirst) {
  const TracedRun run;
  const auto copies = run.trace->of(Kind::kSpan, "copy");
  const auto units = run.trace->of(Kind::kSpan, "unit");
  std::map<std::int64_t, TraceEvent> starts;
  for (const TraceEvent& start : run.trace->of(Kind::kFlowStart, "flow")) {
    EXPECT_TRUE(covered(start, copies)) << start.track;
    EXPECT_TRUE(starts.emplace(start.flow, start).second) << "a copy starts one flow";
  }
  const auto ends = run.trace->of(Kind::kFlowEnd, "flow");
  EXPECT_GE(ends.size(), units.size() / 2);
  std::set<std::int64_t> ended;
  for (const TraceEvent& end : ends) {
    EXPECT_TRUE(ended.insert(end.flow).second) << "a copy has one first use";
    EXPECT_TRUE(covered(end, units)) << end.track;
    ASSERT_TRUE(starts.contains(end.flow));
    const TraceEvent& start = starts.at(end.flow);
    EXPECT_LE(start.start, end.start);
    EXPECT_EQ(start.track.substr(0, 4), end.track.substr(0, 4)) << "of one device";
    EXPECT_EQ(start.name, end.name);
  }
}

TEST(TraceTest, CopiesOfPartsAreNamedAfterThem) {
  const TracedRun run;
  std::size_t named = 0;
  for (const TraceEvent& copy : run.trace->of(Kind::kSpan, "copy")) {
    const bool of_a_job = copy.name.starts_with("gpt2 ") || copy.name.starts_with("other ");
    named += of_a_job ? 1 : 0;
  }
  EXPECT_GE(named, run.trace->of(Kind::kFlowStart, "flow").size());
}

TEST(TraceTest, MemoryIsCountedPerTierAndEndsWithNothingOnTheDevices) {
  const TracedRun run;
  std::map<std::string, double> last;
  std::map<std::string, double> largest;
  for (const TraceEvent& counter : run.trace->of(Kind::kCounter, "memory")) {
    last[counter.name] = counter.value;
    largest[counter.name] = std::max(largest[counter.name], counter.value);
  }
  ASSERT_EQ(last.size(), 3U);
  EXPECT_GT(largest.at("host memory"), 0);
  for (const std::string device : {"cpu0 memory", "cpu1 memory"}) {
    EXPECT_GT(largest.at(device), 0);
    EXPECT_LE(largest.at(device), static_cast<double>(run.budget.count()));
    EXPECT_EQ(last.at(device), 0);
  }
}

TEST(TraceTest, WaitsAndUnitsOfADeviceDoNotOverlapAndTheWaitsNameTheirCause) {
  const TracedRun run;
  const std::set<std::string> causes = {"wait for transfer", "wait for another unit",
                                        "wait for input", "idle"};
  auto spans = run.trace->of(Kind::kSpan, "unit");
  for (TraceEvent& wait : run.trace->of(Kind::kSpan, "wait")) {
    EXPECT_TRUE(causes.contains(wait.name)) << wait.name;
    spans.push_back(std::move(wait));
  }
  std::sort(spans.begin(), spans.end(),
            [](const TraceEvent& a, const TraceEvent& b) { return a.start < b.start; });
  std::map<std::string, Nanoseconds> free;
  for (const TraceEvent& span : spans) {
    EXPECT_LE(free[span.track], span.start) << span.track << " " << span.name;
    free[span.track] = span.start + span.duration;
  }
}

}  // namespace
}  // namespace hydra
