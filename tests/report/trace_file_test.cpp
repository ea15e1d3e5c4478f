#include "hydra/report/trace_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "hydra/core/error.h"

namespace hydra {
namespace {

using Json = nlohmann::json;

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest() {
    // One folder per test: CTest may run several at once.
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("hydra_trace_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~TraceFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return (folder_ / "trace.json").string(); }

  Json read() const {
    std::ifstream file(path());
    return Json::parse(file);
  }

  /// The events of one phase.
  static std::vector<Json> of_phase(const Json& trace, const std::string& phase) {
    std::vector<Json> found;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == phase) found.push_back(event);
    }
    return found;
  }

  static TraceEvent event(TraceEvent::Kind kind, const std::string& track,
                          const std::string& name) {
    TraceEvent made;
    made.kind = kind;
    made.track = track;
    made.category = "unit";
    made.name = name;
    made.start = Nanoseconds(1500);
    return made;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(TraceFileTest, EveryTrackIsANamedThreadOfOneProcess) {
  TraceFile trace(path());
  EXPECT_TRUE(trace.enabled());
  for (const char* track : {"cpu0 compute", "cpu0 upload", "cpu0 compute"}) {
    trace.record(event(TraceEvent::Kind::kSpan, track, track));
  }
  trace.write();
  const Json json = read();
  std::map<int, std::string> names;
  for (const Json& thread : of_phase(json, "M")) {
    EXPECT_EQ(thread["name"], "thread_name");
    EXPECT_EQ(thread["pid"], 1);
    names[thread["tid"]] = thread["args"]["name"];
  }
  EXPECT_EQ(names.size(), 2U);
  const auto spans = of_phase(json, "X");
  ASSERT_EQ(spans.size(), 3U);
  for (const Json& span : spans) {
    EXPECT_EQ(span["pid"], 1);
    EXPECT_EQ(names.at(span["tid"]), span["name"]);
  }
}

TEST_F(TraceFileTest, ASpanHasItsTimesInMicroseconds) {
  TraceFile trace(path());
  TraceEvent span = event(TraceEvent::Kind::kSpan, "cpu0 compute", "job-2 forward shard 3");
  span.duration = std::chrono::milliseconds(2);
  span.arguments = {{"bytes", "17"}, {"why", "\"longest\""}};
  trace.record(span);
  trace.write();
  const auto spans = of_phase(read(), "X");
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0]["ts"], 1.5);
  EXPECT_EQ(spans[0]["dur"], 2000.0);
  EXPECT_EQ(spans[0]["name"], "job-2 forward shard 3");
  EXPECT_EQ(spans[0]["cat"], "unit");
  EXPECT_EQ(spans[0]["args"], Json({{"bytes", "17"}, {"why", "\"longest\""}}));
}

TEST_F(TraceFileTest, TimesKeepTheirNanosecondsAfterADay) {
  TraceFile trace(path());
  TraceEvent span = event(TraceEvent::Kind::kSpan, "t", "n");
  span.start = std::chrono::hours(24) + Nanoseconds(1);
  trace.record(span);
  trace.write();
  EXPECT_EQ(of_phase(read(), "X")[0]["ts"].get<double>(), 86400000000.001);
}

TEST_F(TraceFileTest, InstantsCountersAndFlowsHaveWhatTheirPhasesNeed) {
  TraceFile trace(path());
  trace.record(event(TraceEvent::Kind::kInstant, "t", "instant"));
  TraceEvent counter = event(TraceEvent::Kind::kCounter, "t", "counter");
  counter.value = 2.5;
  trace.record(counter);
  TraceEvent start = event(TraceEvent::Kind::kFlowStart, "t", "flow");
  TraceEvent end = event(TraceEvent::Kind::kFlowEnd, "u", "flow");
  start.flow = end.flow = 0;  // the first number there is
  trace.record(start);
  trace.record(end);
  trace.write();
  const Json json = read();
  EXPECT_EQ(of_phase(json, "i").at(0)["s"], "t");
  EXPECT_EQ(of_phase(json, "C").at(0)["args"]["value"], 2.5);
  EXPECT_EQ(of_phase(json, "s").at(0)["id"], 0);
  EXPECT_EQ(of_phase(json, "f").at(0)["id"], 0);
  EXPECT_EQ(of_phase(json, "f").at(0)["bp"], "e");
  for (const char* phase : {"i", "C", "s", "f"}) {
    EXPECT_FALSE(of_phase(json, phase).at(0).contains("dur")) << phase;
  }
  EXPECT_FALSE(of_phase(json, "i").at(0).contains("id"));
}

TEST_F(TraceFileTest, AnEmptyTraceIsValid) {
  TraceFile(path()).write();
  EXPECT_EQ(read()["traceEvents"], Json::array());
}

TEST_F(TraceFileTest, NamesOfAnyBytesGiveValidJson) {
  TraceFile trace(path());
  trace.record(event(TraceEvent::Kind::kSpan, "größe \xff", "a\n\"b\""));
  trace.write();
  EXPECT_EQ(of_phase(read(), "X").at(0)["name"], "a\n\"b\"");
}

TEST_F(TraceFileTest, WritingAgainHoldsWhatCameSince) {
  TraceFile trace(path());
  trace.record(event(TraceEvent::Kind::kSpan, "t", "first"));
  trace.write();
  trace.record(event(TraceEvent::Kind::kSpan, "t", "second"));
  trace.write();
  EXPECT_EQ(of_phase(read(), "X").size(), 2U);
}

TEST_F(TraceFileTest, ThreadsRecordAtOnceAndNothingIsLost) {
  TraceFile trace(path());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&trace, t] {
      for (int i = 0; i < 200; ++i) {
        trace.record(event(TraceEvent::Kind::kSpan, "track " + std::to_string(t),
                           std::to_string(200 * t + i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  trace.write();
  std::set<std::string> names;
  for (const Json& span : of_phase(read(), "X")) names.insert(span["name"]);
  EXPECT_EQ(names.size(), 800U);
}

TEST_F(TraceFileTest, AFileThatCannotBeWrittenIsAnErrorWithItsPath) {
  try {
    const TraceFile trace("/no/such/folder/trace.json");
    FAIL() << "nothing was thrown";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/folder/trace.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace hydra
