#include <gtest/gtest.h>

#include "ratio_estimate.h"
#include "window_meter.h"

namespace bench {
namespace {

using hydra::Nanoseconds;
using hydra::TraceEvent;

TEST(RatioEstimateTest, NinePairsGiveTheSecondSmallestAndSecondLargest) {
  const RatioEstimate estimate = estimate_ratio({9, 1, 8, 2, 7, 3, 6, 4, 5});
  EXPECT_EQ(estimate.median, 5);
  EXPECT_EQ(estimate.low, 2);
  EXPECT_EQ(estimate.high, 8);
  EXPECT_NEAR(estimate.confidence, 1 - 2 * 10.0 / 512, 1e-12);
}

TEST(RatioEstimateTest, TwentyPairsGiveTheSixthFromEitherEnd) {
  std::vector<double> values;
  for (int i = 1; i <= 20; ++i) values.push_back(i);
  const RatioEstimate estimate = estimate_ratio(values);
  EXPECT_EQ(estimate.median, 10.5);
  EXPECT_EQ(estimate.low, 6);
  EXPECT_EQ(estimate.high, 15);
  EXPECT_NEAR(estimate.confidence, 0.9586, 1e-4);  // the tables' figure
}

TEST(RatioEstimateTest, FewPairsSayHowLittleTheirRangeIsWorth) {
  const RatioEstimate estimate = estimate_ratio({3, 1, 2});
  EXPECT_EQ(estimate.low, 1);
  EXPECT_EQ(estimate.high, 3);
  EXPECT_DOUBLE_EQ(estimate.confidence, 0.75);
  EXPECT_DOUBLE_EQ(estimate_ratio({1}).confidence, 0.0);
}

TraceEvent span(const char* category, const char* track, const char* name, int start, int end) {
  TraceEvent event;
  event.category = category;
  event.track = track;
  event.name = name;
  event.start = Nanoseconds(start);
  event.duration = Nanoseconds(end - start);
  return event;
}

TraceEvent copy(const char* track, int start, int end, const char* bytes) {
  TraceEvent event = span("copy", track, "copy", start, end);
  event.arguments = {{"bytes", bytes}};
  return event;
}

TEST(WindowMeterTest, CopiesCountAsHiddenWhereAUnitComputes) {
  WindowMeter meter;
  meter.record(span("unit", "cpu0 compute", "job forward shard 0 step 1", 100, 200));
  meter.record(span("unit", "cpu0 compute", "job backward shard 0 step 1", 250, 300));
  meter.record(copy("cpu0 upload", 150, 260, "1100"));
  meter.record(span("wait", "cpu0 compute", "wait", 200, 250));
  const WindowFigures figures = meter.take(Nanoseconds(0), Nanoseconds(1000));
  EXPECT_DOUBLE_EQ(figures.forward_seconds, 100e-9);
  EXPECT_DOUBLE_EQ(figures.unit_seconds, 150e-9);
  EXPECT_DOUBLE_EQ(figures.copy_seconds, 110e-9);
  EXPECT_DOUBLE_EQ(figures.hidden_copy_seconds, 60e-9);
  EXPECT_EQ(figures.links.at("cpu0 upload").bytes, hydra::Bytes(1100));
}

TEST(WindowMeterTest, OnlyTheShareInsideTheWindowCounts) {
  WindowMeter meter;
  meter.record(span("unit", "cpu0 compute", "job forward shard 0 step 1", 0, 100));
  meter.record(copy("cpu0 download", 50, 150, "1000"));
  const WindowFigures first = meter.take(Nanoseconds(80), Nanoseconds(120));
  EXPECT_DOUBLE_EQ(first.unit_seconds, 20e-9);
  EXPECT_DOUBLE_EQ(first.hidden_copy_seconds, 20e-9);
  EXPECT_EQ(first.links.at("cpu0 download").bytes, hydra::Bytes(400));
  const WindowFigures rest = meter.take(Nanoseconds(120), Nanoseconds(1000));
  EXPECT_DOUBLE_EQ(rest.unit_seconds, 0.0);
  EXPECT_EQ(rest.links.at("cpu0 download").bytes, hydra::Bytes(300));
}

}  // namespace
}  // namespace bench
