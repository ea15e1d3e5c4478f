#include "hydra/data/batch_loader.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hydra/core/error.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGiveUp{30'000};
constexpr milliseconds kLongEnoughToGoWrong{20};

/// Gives batches that hold their own step, after doing what the test wants done.
class CountingData final : public DataSource {
 public:
  explicit CountingData(std::function<void(std::int64_t)> before = {})
      : before_(std::move(before)) {}

  Batch batch(std::int64_t step) override {
    inside = true;
    ++calls;
    if (before_) {
      try {
        before_(step);
      } catch (...) {
        inside = false;
        throw;
      }
    }
    Batch batch;
    batch.rows = 1;
    batch.inputs = {torch::full({1}, step, torch::kLong)};
    inside = false;
    return batch;
  }

  std::atomic<int> calls{0};
  std::atomic<bool> inside{false};

 private:
  std::function<void(std::int64_t)> before_;
};

/// Counts calls and lets a test wait for each.
class Signal {
 public:
  std::function<void()> callback() {
    return [this] {
      ++count_;
      arrived_.release();
    };
  }
  bool wait() { return arrived_.try_acquire_for(kGiveUp); }
  int count() const { return count_; }

 private:
  std::atomic<int> count_{0};
  std::counting_semaphore<> arrived_{0};
};

class OutOfPaper : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::int64_t step_of(const Batch& batch) { return batch.inputs.at(0).item<std::int64_t>(); }

/// Waits for a batch and returns its step, or -1 when none came.
std::int64_t next_step(BatchLoader& loader, Signal& ready) {
  Batch batch;
  if (!ready.wait() || !loader.try_take(batch)) return -1;
  return step_of(batch);
}

TEST(BatchLoaderTest, GivesTheStepsInOrderAndThenNoMore) {
  for (const std::size_t depth : {1U, 2U, 5U, 100U}) {
    SCOPED_TRACE(depth);
    auto data = std::make_shared<CountingData>();
    Signal ready;
    BatchLoader loader(data, 3, 23, depth, ready.callback());
    for (std::int64_t step = 3; step < 23; ++step) ASSERT_EQ(next_step(loader, ready), step);
    Batch batch;
    EXPECT_FALSE(loader.try_take(batch));
    loader.close();
    EXPECT_EQ(data->calls, 20);
    EXPECT_EQ(ready.count(), 20);
  }
}

TEST(BatchLoaderTest, AnEmptyRangeNeverCallsTheSource) {
  auto data = std::make_shared<CountingData>();
  Signal ready;
  BatchLoader loader(data, 4, 4, 2, ready.callback());
  loader.close();
  Batch batch;
  EXPECT_FALSE(loader.try_take(batch));
  EXPECT_EQ(data->calls, 0);
  EXPECT_EQ(ready.count(), 0);
}

TEST(BatchLoaderTest, TakingDoesNotWaitForASlowSource) {
  std::promise<void> go;
  auto data = std::make_shared<CountingData>(
      [gone = go.get_future().share()](std::int64_t) { gone.wait(); });
  Signal ready;
  BatchLoader loader(data, 0, 1, 1, ready.callback());
  Batch batch;
  EXPECT_FALSE(loader.try_take(batch));
  go.set_value();
  EXPECT_EQ(next_step(loader, ready), 0);
}

TEST(BatchLoaderTest, IsNeverMoreThanItsDepthAhead) {
  for (const int depth : {1, 3}) {
    SCOPED_TRACE(depth);
    std::atomic<int> takes{0};
    std::atomic<int> too_early{0};
    auto data = std::make_shared<CountingData>(
        [&, depth](std::int64_t step) { too_early += step < takes + depth ? 0 : 1; });
    Signal ready;
    BatchLoader loader(data, 0, 40, static_cast<std::size_t>(depth), ready.callback());
    for (int taken = 0; taken < 40; ++taken) {
      if (taken % 10 == 0) std::this_thread::sleep_for(kLongEnoughToGoWrong);
      EXPECT_LE(data->calls, taken + depth);
      ++takes;
      ASSERT_EQ(next_step(loader, ready), taken);
    }
    EXPECT_EQ(too_early, 0);
  }
}

TEST(BatchLoaderTest, FillsItsQueueWithoutBeingAsked) {
  auto data = std::make_shared<CountingData>();
  Signal ready;
  BatchLoader loader(data, 0, 10, 3, ready.callback());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ready.wait());
  std::this_thread::sleep_for(kLongEnoughToGoWrong);
  EXPECT_EQ(data->calls, 3);
}

TEST(BatchLoaderTest, AFailureReachesTheTakerWithItsTypeAfterTheBatchesBeforeIt) {
  auto data = std::make_shared<CountingData>([](std::int64_t step) {
    if (step == 2) throw OutOfPaper("tray 2");
  });
  Signal ready;
  BatchLoader loader(data, 0, 10, 8, ready.callback());
  // The failure is there before the first batch is taken.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ready.wait());
  Batch batch;
  for (std::int64_t step = 0; step < 2; ++step) {
    ASSERT_TRUE(loader.try_take(batch));
    EXPECT_EQ(step_of(batch), step);
  }
  for (int again = 0; again < 2; ++again) {
    try {
      loader.try_take(batch);
      ADD_FAILURE() << "no failure";
    } catch (const OutOfPaper& error) {
      EXPECT_STREQ(error.what(), "tray 2");
    }
  }
  loader.close();
  EXPECT_EQ(data->calls, 3);
  EXPECT_EQ(ready.count(), 3);
}

TEST(BatchLoaderTest, HydrasErrorsAndThingsThatAreNoExceptionsKeepTheirTypes) {
  Batch batch;
  {
    Signal ready;
    BatchLoader loader(
        std::make_shared<CountingData>([](std::int64_t) { throw DataError("the shelf is empty"); }),
        0, 1, 1, ready.callback());
    ASSERT_TRUE(ready.wait());
    EXPECT_THROW(loader.try_take(batch), DataError);
  }
  Signal ready;
  BatchLoader loader(std::make_shared<CountingData>([](std::int64_t) { throw 42; }), 0, 1, 1,
                     ready.callback());
  ASSERT_TRUE(ready.wait());
  EXPECT_THROW(loader.try_take(batch), int);
}

TEST(BatchLoaderTest, StopWakesALoaderWhoseQueueIsFull) {
  auto data = std::make_shared<CountingData>();
  Signal ready;
  Signal stopped;
  BatchLoader loader(data, 0, 100, 2, ready.callback());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(ready.wait());
  loader.stop(stopped.callback());
  ASSERT_TRUE(stopped.wait());
  loader.close();
  EXPECT_EQ(stopped.count(), 1);
  EXPECT_EQ(data->calls, 2);
}

TEST(BatchLoaderTest, StopDoesNotWaitForASlowCallAndReportsItsEndOnce) {
  std::promise<void> go;
  std::promise<void> inside;
  auto data =
      std::make_shared<CountingData>([&inside, gone = go.get_future().share()](std::int64_t) {
        inside.set_value();
        gone.wait();
      });
  Signal ready;
  Signal stopped;
  bool called_inside = true;
  BatchLoader loader(data, 0, 10, 4, ready.callback());
  inside.get_future().wait();
  loader.stop([&, report = stopped.callback()] {
    called_inside = data->inside;
    report();
  });
  std::this_thread::sleep_for(kLongEnoughToGoWrong);
  EXPECT_EQ(stopped.count(), 0);
  go.set_value();
  ASSERT_TRUE(stopped.wait());
  EXPECT_FALSE(called_inside);
  loader.close();
  EXPECT_EQ(stopped.count(), 1);
  EXPECT_EQ(data->calls, 1);
  // What came after the stop is dropped, and nobody is told of it.
  Batch batch;
  EXPECT_FALSE(loader.try_take(batch));
  EXPECT_EQ(ready.count(), 0);
}

TEST(BatchLoaderTest, StopReportsOnceWhenTheSourceHasFinishedOrFailed) {
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    auto data = std::make_shared<CountingData>([fails](std::int64_t step) {
      if (fails && step == 1) throw OutOfPaper("at the end");
    });
    Signal ready;
    Signal stopped;
    BatchLoader loader(data, 0, 2, 4, ready.callback());
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(ready.wait());
    std::this_thread::sleep_for(kLongEnoughToGoWrong);  // lets the thread come to its end
    loader.stop(stopped.callback());
    ASSERT_TRUE(stopped.wait());
    loader.close();
    EXPECT_EQ(stopped.count(), 1);
    EXPECT_EQ(data->calls, 2);
  }
}

TEST(BatchLoaderTest, StopReportsOnceWhereverItMeetsTheLoader) {
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    auto data = std::make_shared<CountingData>();
    Signal ready;
    Signal stopped;
    std::atomic<int> calls_at_stop{-1};
    BatchLoader loader(data, 0, 3, 2 + round % 2, ready.callback());
    for (int taken = 0; taken < round % 4; ++taken) ASSERT_EQ(next_step(loader, ready), taken);
    loader.stop([&, report = stopped.callback()] {
      calls_at_stop = data->calls.load();
      report();
    });
    ASSERT_TRUE(stopped.wait());
    loader.close();
    EXPECT_EQ(stopped.count(), 1);
    EXPECT_EQ(data->calls, calls_at_stop);
  }
}

TEST(BatchLoaderTest, ADestroyedLoaderWithAFullQueueLetsTheSourceGo) {
  auto data = std::make_shared<CountingData>();
  Signal ready;
  {
    BatchLoader loader(data, 0, 100, 2, ready.callback());
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(ready.wait());
    EXPECT_EQ(data.use_count(), 2);
  }
  EXPECT_EQ(data->calls, 2);
  EXPECT_EQ(data.use_count(), 1);
}

TEST(BatchLoaderTest, DestructionWaitsForTheCallAtWork) {
  std::promise<void> inside;
  auto data = std::make_shared<CountingData>([&inside](std::int64_t step) {
    if (step == 0) inside.set_value();
    std::this_thread::sleep_for(kLongEnoughToGoWrong);
  });
  Signal ready;
  {
    BatchLoader loader(data, 0, 100, 100, ready.callback());
    inside.get_future().wait();
  }
  EXPECT_FALSE(data->inside);
  const int calls = data->calls;
  std::this_thread::sleep_for(kLongEnoughToGoWrong);
  EXPECT_EQ(data->calls, calls);
}

TEST(BatchLoaderTest, NothingToLoadFromOrIntoIsRefused) {
  Signal ready;
  EXPECT_THROW(BatchLoader(nullptr, 0, 1, 1, ready.callback()), InvalidArgument);
  EXPECT_THROW(BatchLoader(std::make_shared<CountingData>(), 0, 1, 0, ready.callback()),
               InvalidArgument);
}

TEST(BatchLoaderTest, ClosingTwiceIsTheSameAsOnce) {
  auto data = std::make_shared<CountingData>();
  Signal ready;
  BatchLoader loader(data, 0, 100, 1, ready.callback());
  loader.close();
  const int calls = data->calls;
  loader.close();
  EXPECT_EQ(data->calls, calls);
  EXPECT_LE(calls, 1);
}

}  // namespace
}  // namespace hydra
