// Links that are slow against the computation: nothing is used before it has arrived, nothing is
// reused before it has left, and one model's copies run beside another's units.

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine_fixture.h"
#include "kept_trace.h"

namespace hydra {
namespace {

using testing::small_job;

RuntimeOptions slow(RuntimeOptions options) {
  for (auto& device : options.devices) {
    device.link_bytes_per_second = 40e6;
    device.link_latency = std::chrono::microseconds(50);
    device.faults.poison_on_release = true;
  }
  return options;
}

class SlowLinksTest : public ::testing::TestWithParam<std::string> {};

// Gradients that leave slowly while the next unit fills its own; parameters that come slowly after
// their update, while the next step's forward pass wants them.
TEST_P(SlowLinksTest, NothingIsUsedEarlyOrReusedEarlyEagerOrClipped) {
  for (const bool clip : {false, true}) {
    JobOptions job = small_job(GetParam(), 320, 4);
    if (clip) job.max_gradient_norm = 0.05;
    const auto expected = plain(job);
    const Bytes smallest = smallest_budget(job);
    for (const int percent : {100, 160}) {
      for (const bool evict : {false, true}) {
        RuntimeOptions options =
            slow(test_runtime(1 + percent / 160, Bytes(smallest.count() * percent / 100)));
        options.debug.evict_at_once = evict;
        Runtime runtime(std::move(options));
        const JobHandle one = runtime.submit(job);
        const JobHandle two = runtime.submit(job);
        SCOPED_TRACE(std::to_string(percent) + (clip ? " %, clipped" : " %"));
        expect_plain_bits(one, expected);
        expect_plain_bits(two, expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SmallModels, SlowLinksTest,
                         ::testing::ValuesIn(testing::small_job_names()),
                         [](const auto& info) { return info.param; });

/// Writes NaN, infinity or both into the last gradients of a step.
class Spoiler final : public JobCallbacks {
 public:
  Spoiler(double last, double first) : last_(last), first_(first) {}
  bool edits_gradients() const override { return true; }
  void on_gradients(std::int64_t step, const Gradients& gradients) override {
    if (step != 2) return;
    gradients.back().second.view(-1)[-1] = last_;
    gradients.front().second.view(-1)[0] = first_;
  }

 private:
  double last_;
  double first_;
};

TEST(SlowLinksTest, AGradientThatIsNotFiniteEndsItsJobBeforeAnythingIsUpdatedWithIt) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const JobOptions healthy = small_job("gpt2", 322, 4);
  const auto expected = plain(healthy);
  for (const auto& [last, first] : {std::pair(kInfinity, 0.0), std::pair(std::nan(""), 0.0),
                                    std::pair(kInfinity, std::nan(""))}) {
    for (const bool clip : {false, true}) {
      JobOptions job = small_job("mlp", 321, 5);
      if (clip) job.max_gradient_norm = 0.05;
      job.callbacks = std::make_shared<Spoiler>(last, first);
      Runtime runtime(slow(test_runtime(2, smallest_budget(healthy) + Bytes(64 << 10))));
      const JobHandle beside = runtime.submit(healthy);
      const JobHandle spoilt = runtime.submit(job);
      EXPECT_THROW(spoilt.get(), NonFinite);
      EXPECT_EQ(spoilt.metrics().size(), 2U);
      EXPECT_NE(spoilt.status().reason.find("gradient norm of step 2"), std::string::npos)
          << spoilt.status().reason;
      expect_plain_bits(beside, expected);
    }
  }
}

bool within_one_of(const TraceEvent& event, const std::vector<TraceEvent>& spans) {
  return std::any_of(spans.begin(), spans.end(), [&](const TraceEvent& span) {
    return span.start <= event.start && event.start < span.start + span.duration;
  });
}

// One device and four jobs: what comes next is on its way while a unit computes. Where a copy
// begins is compared, not how long it takes, so that a slow machine does not matter.
TEST(SlowLinksTest, MostPartsBeginTheirWayToTheDeviceWhileAUnitComputes) {
  Gpt2Options model = testing::tiny_gpt2_options();
  model.layers = 6;
  model.width = 64;
  model.context = 32;
  JobOptions job = small_job("gpt2", 323, 3);
  auto made = make_gpt2(model);
  for (int i = 0; i < 6; ++i) made->cut_before("block" + std::to_string(i));
  made->cut_before("head");
  job.model = made;
  RuntimeOptions options = slow(test_runtime(1, smallest_budget(job) * 3));
  const auto trace = std::make_shared<KeptTrace>();
  options.trace = trace;
  Runtime runtime(std::move(options));
  std::vector<JobHandle> handles;
  for (int i = 0; i < 4; ++i) handles.push_back(runtime.submit(job));
  EXPECT_EQ(handles[0].plan().shards.size(), 8U);
  runtime.wait_all();
  const auto units = trace->of(TraceEvent::Kind::kSpan, "unit");
  std::int64_t uploads = 0;
  std::int64_t hidden = 0;
  for (const TraceEvent& copy : trace->of(TraceEvent::Kind::kSpan, "copy")) {
    if (copy.track != "cpu0 upload" || copy.name.find("shard") == std::string::npos) continue;
    ++uploads;
    hidden += within_one_of(copy, units) ? 1 : 0;
  }
  EXPECT_GT(uploads, 4 * 3 * 8);
  EXPECT_GT(hidden * 10, uploads * 6) << hidden << " of " << uploads;
}

}  // namespace
}  // namespace hydra
