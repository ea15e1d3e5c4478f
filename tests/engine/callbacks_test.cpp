// The user's code beside a job's steps: the same bits as the plain loop that calls it in place.

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

#include "engine_fixture.h"

namespace hydra {
namespace {

using testing::small_job;

/// Callbacks made of functions.
class Called final : public JobCallbacks {
 public:
  using OnStep = std::function<StepDecision(const StepMetrics&)>;
  using OnGradients = std::function<void(std::int64_t, const Gradients&)>;

  explicit Called(OnStep on_step, OnGradients on_gradients = {})
      : on_step_(std::move(on_step)), on_gradients_(std::move(on_gradients)) {}

  bool edits_gradients() const override { return on_gradients_ != nullptr; }
  void on_gradients(std::int64_t step, const Gradients& gradients) override {
    on_gradients_(step, gradients);
  }
  StepDecision on_step(const StepMetrics& metrics) override { return on_step_(metrics); }

 private:
  OnStep on_step_;
  OnGradients on_gradients_;
};

StepDecision nothing(const StepMetrics&) { return {}; }

/// The job sharded as far as it can be and wholly on its device, on one device and on three.
void expect_plain_bits_everywhere(const JobOptions& job) {
  const auto expected = plain(job);
  for (const Bytes budget : {smallest_budget(job), Bytes(64 << 20)}) {
    for (const int devices : {1, 3}) {
      SCOPED_TRACE(to_string(budget) + " on " + std::to_string(devices));
      Runtime runtime(test_runtime(devices, budget));
      const JobHandle handle = runtime.submit(job);
      expect_plain_bits(handle, expected);
      std::vector<double> norms;
      for (const StepMetrics& step : handle.metrics()) norms.push_back(step.gradient_norm);
      EXPECT_EQ(norms, expected.gradient_norms);
    }
  }
}

class CallbacksTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CallbacksTest, ALearningRateThatFollowsTheLossGivesThePlainLoopsBits) {
  JobOptions job = small_job(GetParam(), 70, 6);
  job.callbacks = std::make_shared<Called>([](const StepMetrics& metrics) {
    StepDecision decision;
    if (metrics.step == 3) {
      decision.follow_schedule = true;
    } else if (metrics.step % 2 == 0) {
      decision.learning_rate = 1e-3 * (1 + metrics.loss);
    }
    return decision;
  });
  expect_plain_bits_everywhere(job);
  job.max_gradient_norm = 0.05;
  expect_plain_bits_everywhere(job);
}

TEST_P(CallbacksTest, EditedGradientsGiveThePlainLoopsBitsAndTheNormOfWhatWasWritten) {
  JobOptions job = small_job(GetParam(), 71, 4);
  job.callbacks =
      std::make_shared<Called>(nothing, [](std::int64_t step, const Gradients& gradients) {
        for (const auto& [name, gradient] : gradients) {
          if (name.find("bias") != std::string::npos) gradient.zero_();
          gradient.mul_(1.0 + static_cast<double>(step));
        }
      });
  expect_plain_bits_everywhere(job);
  const auto unclipped = plain(job);
  job.max_gradient_norm = unclipped.gradient_norms.front() / 2;
  expect_plain_bits_everywhere(job);
}

INSTANTIATE_TEST_SUITE_P(Models, CallbacksTest, ::testing::ValuesIn(testing::small_job_names()),
                         [](const auto& info) { return info.param; });

TEST(JobCallbacksTest, GradientsComeByNameInModelOrderWithTheParametersShapes) {
  JobOptions job = small_job("gpt2", 72, 1);
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> seen;
  job.callbacks = std::make_shared<Called>(nothing, [&](std::int64_t, const Gradients& gradients) {
    for (const auto& [name, gradient] : gradients) {
      EXPECT_TRUE(gradient.is_contiguous()) << name;
      seen.emplace_back(name, gradient.sizes().vec());
    }
  });
  Runtime runtime(test_runtime(2, smallest_budget(job)));
  const JobHandle handle = runtime.submit(job);
  handle.get();
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> expected;
  for (const auto& [name, tensor] : handle.weights()) {
    expected.emplace_back(name, tensor.sizes().vec());
  }
  EXPECT_EQ(seen, expected);  // this model has no buffers
}

TEST(JobCallbacksTest, AParameterThatNoBackwardPassReachesHasNoGradient) {
  JobOptions job = small_job("unused_branch", 73, 2);
  std::vector<bool> present;
  job.callbacks = std::make_shared<Called>(nothing, [&](std::int64_t, const Gradients& gradients) {
    bool found = false;
    for (const auto& [name, gradient] : gradients) found = found || name == "branch.odd";
    present.push_back(found);
  });
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  runtime.submit(job).get();
  EXPECT_EQ(present, (std::vector<bool>{true, false}));
}

TEST(JobCallbacksTest, StepsAreToldOnceInOrderEachBeforeTheNextBegins) {
  for (const bool clip : {false, true}) {
    JobOptions job = small_job("gpt2", 74, 6);
    if (clip) job.max_gradient_norm = 0.1;
    std::vector<StepMetrics> told;
    job.callbacks = std::make_shared<Called>([&](const StepMetrics& metrics) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      told.push_back(metrics);
      return StepDecision{};
    });
    Runtime runtime(test_runtime(2, smallest_budget(job)));
    const JobHandle handle = runtime.submit(job);
    handle.get();
    const auto metrics = handle.metrics();
    ASSERT_EQ(told.size(), metrics.size());
    for (std::size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i].step, static_cast<std::int64_t>(i));
      EXPECT_EQ(told[i].loss, metrics[i].loss);
      EXPECT_EQ(told[i].gradient_norm, metrics[i].gradient_norm);
    }
  }
}

TEST(JobCallbacksTest, AStoppedJobCompletesWithTheStepsItHas) {
  for (const Bytes budget : {smallest_budget(small_job("gpt2", 75, 1)), Bytes(64 << 20)}) {
    JobOptions job = small_job("gpt2", 75, 1000);
    job.callbacks = std::make_shared<Called>(
        [](const StepMetrics& metrics) { return StepDecision{.stop = metrics.step == 2}; });
    Runtime runtime(test_runtime(1, budget));
    const JobHandle handle = runtime.submit(job);
    EXPECT_EQ(handle.wait(), JobState::kCompleted);
    EXPECT_EQ(handle.metrics().size(), 3U);
    job.callbacks = nullptr;
    job.max_steps = 3;
    EXPECT_TRUE(same_bits(handle.weights(), plain(job).weights));
  }
}

TEST(JobCallbacksTest, AnExceptionFailsItsJobAloneAndNamesCallbackAndStep) {
  const JobOptions healthy = small_job("gpt2", 76, 5);
  Runtime runtime(test_runtime(2, smallest_budget(healthy) + Bytes(64 << 10)));
  JobOptions job = small_job("mlp", 77, 5);
  job.name = "thrower";
  job.callbacks = std::make_shared<Called>([](const StepMetrics& metrics) -> StepDecision {
    if (metrics.step == 1) throw std::runtime_error("no more");
    return {};
  });
  const JobHandle beside = runtime.submit(healthy);
  const JobHandle step = runtime.submit(job);
  job.callbacks = std::make_shared<Called>(
      nothing, [](std::int64_t, const Gradients&) { throw 3; });  // NOLINT: not an exception type
  const JobHandle gradients = runtime.submit(job);
  EXPECT_THROW(step.get(), CallbackError);
  EXPECT_EQ(step.status().reason, "job \"thrower\": on_step of step 1 threw: no more");
  EXPECT_THROW(gradients.get(), CallbackError);
  EXPECT_NE(gradients.status().reason.find("on_gradients of step 0"), std::string::npos);
  expect_plain_bits(beside, plain(healthy));
}

TEST(JobCallbacksTest, ARateThatIsNoRateFailsTheJob) {
  for (const double rate : {-1.0, std::nan(""), HUGE_VAL}) {
    JobOptions job = small_job("mlp", 78, 5);
    job.callbacks = std::make_shared<Called>(
        [rate](const StepMetrics&) { return StepDecision{.learning_rate = rate}; });
    Runtime runtime(test_runtime(1, Bytes(64 << 20)));
    EXPECT_THROW(runtime.submit(job).get(), CallbackError);
  }
}

TEST(JobCallbacksTest, ANanWrittenIntoAGradientFailsTheJob) {
  JobOptions job = small_job("mlp", 79, 5);
  job.callbacks = std::make_shared<Called>(nothing, [](std::int64_t step, const Gradients& all) {
    if (step == 1) all.front().second.fill_(std::nan(""));
  });
  Runtime runtime(test_runtime(1, Bytes(64 << 20)));
  EXPECT_THROW(runtime.submit(job).get(), NonFinite);
}

TEST(JobCallbacksTest, ASlowCallbackHoldsUpNoOtherJob) {
  std::promise<void> go_on;
  const auto released = go_on.get_future().share();
  JobOptions slow = small_job("mlp", 80, 3);
  slow.callbacks = std::make_shared<Called>([released](const StepMetrics&) {
    released.wait();
    return StepDecision{};
  });
  const JobOptions other = small_job("gpt2", 81, 5);
  Runtime runtime(test_runtime(1, smallest_budget(other) + Bytes(64 << 10)));
  const JobHandle held = runtime.submit(slow);
  expect_plain_bits(runtime.submit(other), plain(other));
  EXPECT_EQ(held.status().state, JobState::kRunning);
  go_on.set_value();
  expect_plain_bits(held, plain(slow));
}

TEST(JobCallbacksTest, AJobIsCancelledFromItsOwnCallbackAndWhileItWaitsForIt) {
  std::promise<JobHandle> handle;
  auto own = handle.get_future().share();
  JobOptions job = small_job("mlp", 82, 1000);
  job.callbacks = std::make_shared<Called>([own](const StepMetrics& metrics) {
    if (metrics.step == 3) own.get().cancel();
    return StepDecision{};
  });
  Runtime runtime(test_runtime(1, Bytes(64 << 20)));
  const JobHandle submitted = runtime.submit(job);
  handle.set_value(submitted);
  EXPECT_EQ(submitted.wait(), JobState::kCancelled);
  EXPECT_EQ(submitted.metrics().size(), 4U);
}

TEST(JobCallbacksTest, ARuntimeThatDiesLetsTheCallAtWorkReturn) {
  std::atomic<bool> inside{false};
  std::atomic<bool> returned{false};
  JobOptions job = small_job("mlp", 83, 1000);
  job.callbacks = std::make_shared<Called>([&](const StepMetrics&) {
    inside = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    returned = true;
    return StepDecision{};
  });
  {
    Runtime runtime(test_runtime(1, Bytes(64 << 20)));
    runtime.submit(job);
    while (!inside) std::this_thread::yield();
  }
  EXPECT_TRUE(returned);
}

}  // namespace
}  // namespace hydra
