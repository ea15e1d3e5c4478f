// One job's failure is that job's alone.

#include <ATen/ops/zeros.h>

#include <future>
#include <thread>

#include "engine_fixture.h"
#include "hydra/testing/random_data.h"

namespace hydra {
namespace {

using testing::small_job;

JobOptions job_of(std::shared_ptr<Model> model, std::int64_t steps) {
  JobOptions job = small_job("mlp", 40, steps);
  job.model = std::move(model);
  return job;
}

ErrorCode code_of(const JobHandle& job) {
  try {
    job.get();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

/// Runs the job beside a healthy one, whose bits must not change, and returns it ended.
JobHandle run_beside_healthy(const JobOptions& job, Runtime& runtime) {
  const JobOptions healthy = small_job("gpt2", 41, 4);
  const JobHandle beside = runtime.submit(healthy);
  const JobHandle handle = runtime.submit(job);
  handle.wait();
  expect_plain_bits(beside, plain(healthy));
  return handle;
}

Bytes budget() { return smallest_budget(small_job("gpt2", 41, 4)) + Bytes(64 << 10); }

TEST(JobFailureTest, AnExceptionInALayerFailsItsJobWithItsReason) {
  Runtime runtime(test_runtime(2, budget()));
  const JobHandle job = run_beside_healthy(job_of(testing::throwing_model(2), 5), runtime);
  EXPECT_EQ(job.status().state, JobState::kFailed);
  EXPECT_EQ(code_of(job), ErrorCode::kLayer);
  EXPECT_NE(job.status().reason.find("planted fault"), std::string::npos) << job.status().reason;
  EXPECT_EQ(job.metrics().size(), 2U);
}

TEST(JobFailureTest, ANanLossFailsItsJobAndNamesTheStep) {
  Runtime runtime(test_runtime(2, budget()));
  const JobHandle job = run_beside_healthy(job_of(testing::nan_model(1), 5), runtime);
  EXPECT_EQ(job.status().state, JobState::kFailed);
  EXPECT_EQ(code_of(job), ErrorCode::kNonFinite);
  EXPECT_NE(job.status().reason.find("step 1"), std::string::npos) << job.status().reason;
}

/// Ends early.
class ShortData final : public DataSource {
 public:
  explicit ShortData(std::shared_ptr<DataSource> inner) : inner_(std::move(inner)) {}
  Batch batch(std::int64_t step) override {
    if (step >= 3) throw DataError("the data set ends after 3 steps");
    return inner_->batch(step);
  }

 private:
  std::shared_ptr<DataSource> inner_;
};

TEST(JobFailureTest, ADataSetThatEndsEarlyFailsItsJobAfterItsLastBatch) {
  Runtime runtime(test_runtime(1, budget()));
  JobOptions job = small_job("mlp", 42, 10);
  job.data = std::make_shared<ShortData>(job.data);
  const JobHandle handle = run_beside_healthy(job, runtime);
  EXPECT_EQ(code_of(handle), ErrorCode::kData);
  EXPECT_EQ(handle.metrics().size(), 3U);
}

/// Grows after the first step.
class GrowingData final : public DataSource {
 public:
  Batch batch(std::int64_t step) override {
    return testing::RandomRegression({.seed = 1, .rows = step == 0 ? 4 : 16}).batch(step);
  }
};

TEST(JobFailureTest, ABatchLargerThanTheFirstIsRefusedWithBothNumbers) {
  Runtime runtime(test_runtime(1, budget()));
  JobOptions job = small_job("mlp", 43, 4);
  job.data = std::make_shared<GrowingData>();
  const JobHandle handle = run_beside_healthy(job, runtime);
  EXPECT_EQ(code_of(handle), ErrorCode::kData);
  EXPECT_NE(handle.status().reason.find("16"), std::string::npos) << handle.status().reason;
}

/// Does not return from step 1 before it is told to.
class StuckData final : public DataSource {
 public:
  StuckData(std::shared_ptr<DataSource> inner, std::shared_future<void> go)
      : inner_(std::move(inner)), go_(std::move(go)) {}
  Batch batch(std::int64_t step) override {
    if (step == 1) go_.wait();
    return inner_->batch(step);
  }

 private:
  std::shared_ptr<DataSource> inner_;
  std::shared_future<void> go_;
};

TEST(JobFailureTest, ACancelledJobWhoseDataSourceDoesNotReturnHoldsNobodyUp) {
  std::promise<void> go;
  RuntimeOptions options = test_runtime(1, budget());
  options.update_threads = 1;
  Runtime runtime(std::move(options));
  JobOptions stuck = small_job("mlp", 49, 3);
  stuck.data = std::make_shared<StuckData>(stuck.data, go.get_future().share());
  const JobHandle job = runtime.submit(stuck);
  while (job.metrics().empty()) std::this_thread::yield();
  job.cancel();
  const JobOptions healthy = small_job("gpt2", 41, 4);
  expect_plain_bits(runtime.submit(healthy), plain(healthy));
  EXPECT_EQ(job.status().state, JobState::kRunning);
  go.set_value();
  EXPECT_EQ(job.wait(), JobState::kCancelled);
}

TEST(JobFailureTest, AModelLargerThanAnyPlanIsRefusedBeforeItStarts) {
  Runtime runtime(test_runtime(1, Bytes(4096)));
  try {
    runtime.submit(small_job("gpt2", 44, 1));
    FAIL() << "was not refused";
  } catch (const DoesNotFit& error) {
    EXPECT_NE(std::string(error.what()).find("embedding"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(runtime.jobs().empty());
}

TEST(JobFailureTest, AJobLargerThanTheHostBudgetIsRefusedWithTheNumbers) {
  RuntimeOptions options = test_runtime(1, Bytes(64 << 20));
  options.host_memory = Bytes(4096);
  Runtime runtime(std::move(options));
  EXPECT_THROW(runtime.submit(small_job("gpt2", 45, 1)), OutOfHostMemory);
}

TEST(JobFailureTest, InvalidOptionsAreRefusedByName) {
  Runtime runtime(test_runtime(1, Bytes(64 << 20)));
  JobOptions job = small_job("mlp", 46, 1);
  job.max_steps = 0;
  EXPECT_THROW(runtime.submit(job), InvalidArgument);
  job = small_job("mlp", 46, 1);
  job.model = nullptr;
  EXPECT_THROW(runtime.submit(job), InvalidArgument);
  job = small_job("mlp", 46, 1);
  job.micro_batch_size = -1;
  EXPECT_THROW(runtime.submit(job), InvalidArgument);
  job = small_job("mlp", 46, 1);
  job.initial_weights = std::make_shared<Weights>(Weights{{"no.such.weight", at::zeros({1})}});
  EXPECT_THROW(runtime.submit(job), InvalidArgument);
}

at::Tensor weight_of(const Weights& weights, const std::string& name) {
  for (const auto& [known, tensor] : weights) {
    if (known == name) return tensor;
  }
  ADD_FAILURE() << "no weight is named " << name;
  return at::zeros({1});
}

TEST(JobFailureTest, ATiedParametersInitialWeightIsTakenUnderAnyOfItsNames) {
  JobOptions job = small_job("gpt2", 60, 2);
  const at::Tensor tied =
      weight_of(plain(small_job("gpt2", 61, 1)).weights, "embedding.wte.weight");
  job.initial_weights = std::make_shared<const Weights>(Weights{{"embedding.wte.weight", tied}});
  const auto expected = plain(job);
  job.initial_weights = std::make_shared<const Weights>(Weights{{"head.weight", tied}});
  Runtime runtime(test_runtime(1, budget()));
  expect_plain_bits(runtime.submit(job), expected);
  job.initial_weights = std::make_shared<const Weights>(
      Weights{{"head.weight", tied}, {"embedding.wte.weight", tied.clone()}});
  expect_plain_bits(runtime.submit(job), expected);
  job.initial_weights = std::make_shared<const Weights>(
      Weights{{"head.weight", tied}, {"embedding.wte.weight", at::zeros(tied.sizes())}});
  EXPECT_THROW(runtime.submit(job), InvalidArgument);
}

TEST(JobFailureTest, InitialWeightsOfAnotherShapeOrTypeAreRefusedBeforeAnythingStarts) {
  Runtime runtime(test_runtime(1, budget()));
  JobOptions job = small_job("gpt2", 62, 1);
  const at::Tensor right = weight_of(plain(job).weights, "embedding.wte.weight");
  for (const at::Tensor& wrong : {right.flatten(), right.to(at::kDouble), at::Tensor()}) {
    job.initial_weights = std::make_shared<const Weights>(Weights{{"embedding.wte.weight", wrong}});
    EXPECT_THROW(runtime.submit(job), InvalidArgument);
  }
  EXPECT_TRUE(runtime.jobs().empty());
}

TEST(JobFailureTest, ParameterGroupsThatNameNothingOrHoldImpossibleNumbersAreRefused) {
  Runtime runtime(test_runtime(1, budget()));
  JobOptions job = small_job("gpt2", 63, 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ParameterGroup& group : std::vector<ParameterGroup>{{.pattern = "blok*"},
                                                                 {.pattern = ""},
                                                                 {"*", -1.0, {}},
                                                                 {"*", nan, {}},
                                                                 {"*", 1.0, -0.1},
                                                                 {"*", 1.0, nan}}) {
    job.groups = {group};
    EXPECT_THROW(runtime.submit(job), InvalidArgument) << group.pattern;
  }
  job.groups = {{.pattern = "head.weight", .learning_rate_scale = 0.5}, {.pattern = "*bias"}};
  EXPECT_NO_THROW(runtime.submit(job).get());
}

TEST(JobFailureTest, GradientNormsThatNothingCouldBeClippedToAreRefusedAndInfinityIsNoClipping) {
  Runtime runtime(test_runtime(1, budget()));
  JobOptions job = small_job("gpt2", 64, 2);
  const auto unclipped = plain(job);
  for (const double norm : {0.0, -1.0, 1e-50, std::numeric_limits<double>::quiet_NaN()}) {
    job.max_gradient_norm = norm;
    EXPECT_THROW(runtime.submit(job), InvalidArgument) << norm;
  }
  job.max_gradient_norm = std::numeric_limits<double>::infinity();
  expect_plain_bits(runtime.submit(job), unclipped);
}

TEST(JobFailureTest, AHugeNumberOfStepsIsPlannedWithoutOverflow) {
  Runtime runtime(test_runtime(1, budget()));
  const JobHandle job =
      runtime.submit(small_job("mlp", 65, std::numeric_limits<std::int64_t>::max()));
  while (job.metrics().size() < 3) std::this_thread::yield();
  EXPECT_GT(job.status().time_left, Nanoseconds(0));
  job.stop();
  EXPECT_EQ(job.wait(), JobState::kStopped);
}

TEST(JobFailureTest, EveryFailingCopyGivesTheRightBitsOrOneTypedError) {
  const JobOptions job = small_job("mlp", 47, 2);
  const auto expected = plain(job);
  const Bytes smallest = smallest_budget(job);
  int completed_in_a_row = 0;  // far more than the retries of one copy: the sweep is over
  for (std::int64_t n = 0; completed_in_a_row < 60; ++n) {
    ASSERT_LT(n, 2000);
    RuntimeOptions options = test_runtime(1, smallest);
    options.devices[0].faults.fail_copy = n;
    Runtime runtime(std::move(options));
    const JobHandle handle = runtime.submit(job);
    if (handle.wait() == JobState::kCompleted) {
      expect_plain_bits(handle, expected);
      ++completed_in_a_row;
    } else {
      EXPECT_EQ(code_of(handle), ErrorCode::kDevice) << "copy " << n;
      completed_in_a_row = 0;
    }
    EXPECT_EQ(runtime.device_stats()[0].in_use, Bytes(0)) << "copy " << n;
  }
}

TEST(JobFailureTest, EveryFailingAllocationGivesTheRightBitsOrOneTypedError) {
  const JobOptions job = small_job("mlp", 48, 2);
  const auto expected = plain(job);
  const Bytes smallest = smallest_budget(job);
  int completed = 0;
  for (std::int64_t n = 0; completed < 40; ++n) {
    ASSERT_LT(n, 3000);
    RuntimeOptions options = test_runtime(1, smallest);
    options.devices[0].faults.fail_allocation = n;
    Runtime runtime(std::move(options));
    try {
      const JobHandle handle = runtime.submit(job);
      // A unit that runs out of memory once is tried again alone, so the job completes.
      expect_plain_bits(handle, expected);
      ++completed;
    } catch (const Error&) {  // the pilot met it: refused before anything started
      EXPECT_TRUE(runtime.jobs().empty());
    }
    EXPECT_EQ(runtime.device_stats()[0].in_use, Bytes(0)) << "allocation " << n;
    EXPECT_EQ(runtime.host_budget().reserved(), Bytes(0)) << "allocation " << n;
  }
}

}  // namespace
}  // namespace hydra
