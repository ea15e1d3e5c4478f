// Whatever happens, nobody waits for ever, and nobody is told a lie about why.

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <future>
#include <thread>

#include "engine_fixture.h"
#include "hydra/testing/random_data.h"
#include "kept_log.h"

namespace hydra {
namespace {

using namespace std::chrono_literals;
using testing::hooked_model;
using testing::small_job;

constexpr auto kLimit = 60s;  // far beyond what any of this takes

/// True when the call has returned within the limit; a call that hangs ends the test's process, for
/// it cannot be taken back.
template <typename Call>
void expect_to_return(const std::string& what, Call call) {
  std::future<void> done = std::async(std::launch::async, std::move(call));
  if (done.wait_for(kLimit) == std::future_status::ready) return done.get();
  std::fprintf(stderr, "%s has not returned\n", what.c_str());
  std::_Exit(1);
}

Bytes budget() { return smallest_budget(small_job("gpt2", 41, 4)) + Bytes(64 << 10); }

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 30000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(condition());
}

// Host memory that handles hold.

struct Room {
  Bytes state;
  Bytes step;
};

Room room_of(const JobOptions& job) {
  const Plan plan = Runtime(test_runtime(1, Bytes(1 << 20))).plan(job);
  return {plan.host_state, plan.host_step};
}

TEST(LivenessTest, AJobWaitsForTheWeightsThatHandlesHoldSaysSoAndGoesOnWhenTheyGo) {
  const JobOptions job = small_job("mlp", 300, 2);
  const Room room = room_of(job);
  RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
  options.host_memory = room.state + room.step + Bytes(64);
  const auto log = std::make_shared<KeptLog>();
  options.log = log;
  Runtime runtime(std::move(options));
  std::optional<JobHandle> first = runtime.submit(job);
  first->wait();
  const JobHandle second = runtime.submit(job);
  wait_until([&] { return !second.status().reason.empty(); });
  EXPECT_EQ(second.status().state, JobState::kQueued);
  EXPECT_NE(second.status().reason.find("\"mlp\""), std::string::npos) << second.status().reason;
  EXPECT_NE(second.status().reason.find("drop the handles"), std::string::npos);
  first.reset();
  expect_to_return("the second job", [&] { expect_plain_bits(second, plain(job)); });
  ASSERT_EQ(log->lines().size(), 1U);
  EXPECT_EQ(second.status().reason, "");
}

// The state of a large job fits beside what a handle holds, its step does not: it may not come in
// and stand in the way of the one that could go on.
TEST(LivenessTest, AJobWhoseStepDoesNotFitBesideHeldWeightsIsNotAdmitted) {
  const JobOptions small = small_job("mlp", 301, 2);
  const JobOptions large = small_job("gpt2", 302, 2);
  const Room room = room_of(large);
  RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
  options.host_memory = room.state + room.step + Bytes(64);
  Runtime runtime(std::move(options));
  std::optional<JobHandle> held = runtime.submit(small);
  held->wait();
  const JobHandle waiting = runtime.submit(large);
  wait_until([&] { return !waiting.status().reason.empty(); });
  EXPECT_EQ(waiting.status().state, JobState::kQueued);
  held.reset();
  expect_to_return("the large job", [&] { expect_plain_bits(waiting, plain(large)); });
}

TEST(LivenessTest, WaitingForAllKeepsNoWeights) {
  const JobOptions job = small_job("mlp", 303, 2);
  const Room room = room_of(job);
  RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
  options.host_memory = room.state + room.step + Bytes(64);
  Runtime runtime(std::move(options));
  for (int i = 0; i < 8; ++i) runtime.submit(job);
  expect_to_return("wait_all", [&] { runtime.wait_all(); });
  for (const JobHandle& handle : runtime.jobs()) {
    EXPECT_EQ(handle.status().state, JobState::kCompleted);
  }
}

TEST(LivenessTest, EightJobsOnStorageBesideHeldBuffersAllEnd) {
  const JobOptions job = small_job("conv_net", 304, 2);
  RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
  options.storage.kind = BlockIoKind::kMemory;
  options.storage.drives = {{"memory", Bytes(64 << 20)}};
  options.storage.host_cache = Bytes(1 << 20);
  const Plan plan = Runtime(options).plan(job);
  options.host_memory = options.storage.host_cache + plan.host_state + plan.host_step + Bytes(64);
  Runtime runtime(std::move(options));
  for (int i = 0; i < 8; ++i) runtime.submit(job);
  expect_to_return("wait_all", [&] { runtime.wait_all(); });
}

// Closing.

/// A job that holds its device until it is let go.
struct Blocker {
  std::promise<void> go;
  std::atomic<bool> at_work{false};

  JobOptions job() {
    JobOptions options = small_job("mlp", 305, 3);
    options.name = "blocker";
    options.model = hooked_model([this, gone = go.get_future().share()](LayerContext& context) {
      if (context.step() != 1) return;
      at_work = true;
      gone.wait();
    });
    return options;
  }
};

TEST(LivenessTest, ClosingBreaksASubmitWhosePilotWaitsForABusyDevice) {
  Blocker blocker;
  Runtime runtime(test_runtime(1, budget()));
  const JobHandle busy = runtime.submit(blocker.job());
  wait_until([&] { return blocker.at_work.load(); });
  std::future<void> submit = std::async(std::launch::async, [&] {
    EXPECT_THROW(runtime.submit(small_job("gpt2", 306, 1)), InvalidArgument);
  });
  EXPECT_EQ(submit.wait_for(50ms), std::future_status::timeout);
  std::future<void> close = std::async(std::launch::async, [&] { runtime.close(); });
  expect_to_return("the submit", [&] { submit.get(); });
  blocker.go.set_value();
  expect_to_return("close", [&] { close.get(); });
  EXPECT_EQ(busy.wait(), JobState::kCancelled);
  EXPECT_THROW(runtime.submit(small_job("mlp", 307, 1)), InvalidArgument);
  EXPECT_EQ(runtime.summary().jobs.size(), 1U);
}

TEST(LivenessTest, ClosingWhileJobsAreSubmittedFromManyThreadsEndsEveryWait) {
  for (int round = 0; round < 5; ++round) {
    Runtime runtime(test_runtime(2, budget()));
    runtime.submit(small_job("mlp", 308, 1));
    std::vector<std::future<void>> threads;
    for (int t = 0; t < 4; ++t) {
      threads.push_back(std::async(std::launch::async, [&runtime, t] {
        try {
          for (int i = 0; i < 50; ++i)
            runtime.submit(small_job(t % 2 ? "mlp" : "gpt2", 309, 3)).wait();
        } catch (const InvalidArgument&) {  // closed
        }
      }));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
    expect_to_return("close", [&] { runtime.close(); });
    for (auto& thread : threads) expect_to_return("a submitter", [&] { thread.get(); });
  }
}

TEST(LivenessTest, ABrokenInvariantEndsEveryWaitOfEveryKind) {
  Blocker blocker;
  std::atomic<bool> broken{false};
  RuntimeOptions options = test_runtime(2, budget());
  options.debug.at_step_end = [&] {
    if (broken) throw InternalError("planted");
  };
  const auto log = std::make_shared<KeptLog>();
  options.log = log;
  Runtime runtime(std::move(options));
  const JobHandle busy = runtime.submit(blocker.job());
  wait_until([&] { return blocker.at_work.load(); });
  std::future<void> submit = std::async(std::launch::async, [&] {
    try {
      EXPECT_EQ(runtime.submit(small_job("gpt2", 310, 1000)).wait(), JobState::kFailed);
    } catch (const InvalidArgument&) {  // refused, as closed
    }
  });
  std::this_thread::sleep_for(20ms);
  broken = true;
  blocker.go.set_value();
  expect_to_return("the job at work", [&] { EXPECT_EQ(busy.wait(), JobState::kFailed); });
  expect_to_return("the submit", [&] { submit.get(); });
  expect_to_return("wait_all", [&] { runtime.wait_all(); });
  EXPECT_THROW(runtime.submit(small_job("mlp", 311, 1)), InvalidArgument);
  EXPECT_NE(busy.status().reason.find("planted"), std::string::npos);
}

// Faults of what users give.

class BadPolicy final : public Policy {
 public:
  explicit BadPolicy(int kind) : kind_(kind) {}
  std::string_view name() const noexcept override { return "bad"; }
  std::optional<Decision> choose(const ScheduleView& view) const override {
    if (kind_ == 0) throw std::runtime_error("planted");
    if (kind_ == 1) return std::nullopt;
    return Decision{view.jobs.size() + 3, "out of range"};
  }

 private:
  int kind_;
};

TEST(LivenessTest, APolicyThatFailsIsToldOnceAndChangesNoBit) {
  const JobOptions job = small_job("gpt2", 312, 3);
  for (int kind = 0; kind < 3; ++kind) {
    RuntimeOptions options = test_runtime(2, budget());
    options.policy = std::make_shared<BadPolicy>(kind);
    const auto log = std::make_shared<KeptLog>();
    options.log = log;
    Runtime runtime(std::move(options));
    std::vector<JobHandle> handles;
    for (int i = 0; i < 3; ++i) handles.push_back(runtime.submit(job));
    for (const JobHandle& handle : handles) expect_plain_bits(handle, plain(job));
    EXPECT_EQ(log->lines().size(), 1U);
  }
}

/// Holds its own job's handle.
class SelfHolder final : public JobCallbacks {
 public:
  StepDecision on_step(const StepMetrics&) override { return {}; }
  std::optional<JobHandle> handle;
};

TEST(LivenessTest, WhatAUserGaveGoesWithTheJobEvenACallbackThatHoldsItsOwnHandle) {
  std::weak_ptr<SelfHolder> callbacks;
  std::weak_ptr<const Weights> weights;
  std::weak_ptr<DataSource> data;
  Runtime runtime(test_runtime(1, budget()));
  {
    JobOptions job = small_job("mlp", 313, 2);
    const auto holder = std::make_shared<SelfHolder>();
    job.callbacks = holder;
    job.initial_weights = std::make_shared<const Weights>(plain(small_job("mlp", 314, 1)).weights);
    callbacks = holder;
    weights = job.initial_weights;
    data = job.data;
    holder->handle = runtime.submit(job);
    holder->handle->wait();
  }
  wait_until([&] { return callbacks.expired() && weights.expired() && data.expired(); });
  EXPECT_EQ(runtime.host_budget().reserved(), Bytes(0));
}

// Out of device memory.

/// Takes `bytes` of the device for a moment in each forward from step 1 on: the pilot, which sees
/// step 0, does not know.
std::shared_ptr<Model> greedy_model(Bytes bytes) {
  return hooked_model([bytes](LayerContext& context) {
    if (context.step() >= 1) at::empty({bytes.count() / 4}, at::kFloat);
  });
}

TEST(LivenessTest, AJobThatOnlyFitsAloneCompletesWithItsBitsAndTheOthersWithTheirs) {
  const JobOptions other = small_job("gpt2", 315, 6);
  const auto other_bits = plain(other);
  const Bytes memory = budget() * 2;
  for (const auto delay : {0us, 300us}) {
    JobOptions greedy = small_job("mlp", 316, 6);
    greedy.model = greedy_model(Bytes(0));
    const Bytes own = Runtime(test_runtime(1, memory)).plan(greedy).resident_bytes;
    // Nearly all of the device: there is no room beside it for copies of other jobs' shards.
    greedy.model = greedy_model(memory - own - Bytes(32 << 10));
    RuntimeOptions options = test_runtime(1, memory);
    options.devices[0].faults.delay_seed = 1;
    options.devices[0].faults.largest_delay = delay;
    Runtime runtime(std::move(options));
    std::vector<JobHandle> others;
    for (int i = 0; i < 3; ++i) others.push_back(runtime.submit(other));
    const JobHandle job = runtime.submit(greedy);
    expect_plain_bits(job, plain(greedy));
    for (const JobHandle& handle : others) expect_plain_bits(handle, other_bits);
  }
}

TEST(LivenessTest, AJobThatCannotFitEndsAsOutOfDeviceMemoryAndTheOthersKeepTheirBits) {
  const JobOptions other = small_job("gpt2", 317, 6);
  JobOptions greedy = small_job("mlp", 318, 6);
  greedy.model = greedy_model(budget() * 2);
  Runtime runtime(test_runtime(2, budget()));
  const JobHandle beside = runtime.submit(other);
  const JobHandle job = runtime.submit(greedy);
  EXPECT_EQ(job.wait(), JobState::kFailed);
  EXPECT_THROW(job.get(), OutOfDeviceMemory);
  EXPECT_EQ(job.metrics().size(), 1U);
  expect_plain_bits(beside, plain(other));
}

// A unit's memory.

TEST(LivenessTest, AUnitThatThrowsFreesNothingThatIsStillBeingCopiedInto) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    RuntimeOptions options = test_runtime(1, budget());
    options.devices[0].faults.delay_seed = seed;
    options.devices[0].faults.largest_delay = 2ms;
    Runtime runtime(std::move(options));
    JobOptions job = small_job("mlp", 319, 3);  // two micro-batches
    job.model = testing::throwing_model(1);
    EXPECT_EQ(runtime.submit(job).wait(), JobState::kFailed);
    EXPECT_EQ(runtime.device_stats()[0].frees_under_copy, 0) << "seed " << seed;
    EXPECT_EQ(runtime.device_stats()[0].in_use, Bytes(0));
  }
}

// Stopping.

/// Stops its job when step 2 has ended.
class Stopper final : public JobCallbacks {
 public:
  StepDecision on_step(const StepMetrics& metrics) override {
    if (metrics.step == 2) handle.get_future().get().stop();
    return {};
  }
  std::promise<JobHandle> handle;
};

TEST(LivenessTest, AStoppedJobEndsAtItsStepBorderWithTheWeightsItHasThen) {
  for (const bool clip : {false, true}) {
    for (const Bytes memory : {budget(), Bytes(64 << 20)}) {
      JobOptions job = small_job("gpt2", 320, 50);
      if (clip) job.max_gradient_norm = 0.1;
      const auto stopper = std::make_shared<Stopper>();
      JobOptions with_stopper = job;
      with_stopper.callbacks = stopper;
      Runtime runtime(test_runtime(1, memory));
      const JobHandle handle = runtime.submit(with_stopper);
      stopper->handle.set_value(handle);
      EXPECT_EQ(handle.wait(), JobState::kStopped);
      job.max_steps = 3;
      expect_plain_bits(handle, plain(job));
      EXPECT_EQ(runtime.summary().jobs[0].state, "stopped");
      EXPECT_EQ(runtime.summary().jobs[0].parameters_sha256, handle.parameters_sha256());
    }
  }
}

TEST(LivenessTest, StoppingAllAtRandomTimesEndsEveryJobWithTheBitsOfItsSteps) {
  for (int round = 0; round < 8; ++round) {
    Runtime runtime(test_runtime(1 + round % 2, budget()));
    std::vector<JobHandle> handles;
    JobOptions job = small_job("gpt2", 321, 100000);
    if (round % 4 >= 2) job.max_gradient_norm = 0.1;
    for (int i = 0; i < 3; ++i) handles.push_back(runtime.submit(job));
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 9 * round));
    runtime.stop_all();
    for (const JobHandle& handle : handles) {
      const JobState state = handle.wait();
      if (state == JobState::kCancelled) continue;  // it had not begun
      ASSERT_EQ(state, JobState::kStopped);
      if (handle.metrics().empty()) continue;
      job.max_steps = static_cast<std::int64_t>(handle.metrics().size());
      expect_plain_bits(handle, plain(job));
    }
  }
}

TEST(LivenessTest, AJobStoppedInTheQueueIsCancelled) {
  const JobOptions job = small_job("mlp", 322, 2);
  const Room room = room_of(job);
  RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
  options.host_memory = room.state + room.step + Bytes(64);
  Runtime runtime(std::move(options));
  const JobHandle first = runtime.submit(job);
  first.wait();
  const JobHandle second = runtime.submit(job);
  second.stop();
  EXPECT_EQ(second.wait(), JobState::kCancelled);
  first.stop();  // no effect
  EXPECT_EQ(first.wait(), JobState::kCompleted);
}

TEST(LivenessTest, EqualNamesInOneRuntimeAreNumbered) {
  Runtime runtime(test_runtime(1, budget()));
  EXPECT_EQ(runtime.submit(small_job("mlp", 323, 1)).name(), "mlp");
  EXPECT_EQ(runtime.submit(small_job("mlp", 323, 1)).name(), "mlp (2)");
  JobOptions refused = small_job("mlp", 323, 1);
  refused.max_steps = 0;
  EXPECT_THROW(runtime.submit(refused), InvalidArgument);
  EXPECT_EQ(runtime.submit(small_job("mlp", 323, 1)).name(), "mlp (3)");
}

}  // namespace
}  // namespace hydra
