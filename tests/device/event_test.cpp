#include "hydra/device/event.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "hydra/testing/sweep.h"

namespace hydra {
namespace {

std::exception_ptr failure(const char* message) {
  return std::make_exception_ptr(std::runtime_error(message));
}

TEST(EventTest, ADefaultEventHasFiredWithoutFailure) {
  const Event event;
  EXPECT_TRUE(event.fired());
  EXPECT_NO_THROW(event.wait());
  EXPECT_EQ(event.failure(), nullptr);
  int calls = 0;
  event.then([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(EventTest, CopiesShareThePoint) {
  const Event event = Event::pending();
  const Event copy = event;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_FALSE(copy.fired());
  event.fire(failure("lost"));
  EXPECT_TRUE(copy.fired());
  EXPECT_EQ(copy.failure(), event.failure());
  EXPECT_THROW(copy.wait(), std::runtime_error);
  EXPECT_THROW(copy.wait(), std::runtime_error);  // each time
}

TEST(EventTest, APendingEventHasNoFailureYet) { EXPECT_EQ(Event::pending().failure(), nullptr); }

TEST(EventTest, CallbacksRunInTheOrderInWhichTheyWereGiven) {
  const Event event = Event::pending();
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) event.then([&order, i] { order.push_back(i); });
  event.fire(nullptr);
  EXPECT_EQ(order, (std::vector{0, 1, 2, 3, 4}));
}

TEST(EventTest, ACallbackMayAddAnotherToTheSameEvent) {
  const Event event = Event::pending();
  int calls = 0;
  event.then([&] { event.then([&] { ++calls; }); });
  event.fire(nullptr);
  EXPECT_EQ(calls, 1);
}

TEST(EventTest, TheFirstFailureIsThatOfTheEarliestEventInTheList) {
  const Event good = Event::pending();
  const Event first = Event::pending();
  const Event second = Event::pending();
  second.fire(failure("second"));
  first.fire(failure("first"));
  good.fire(nullptr);
  const std::vector<Event> events{good, first, second};
  EXPECT_EQ(first_failure(events), first.failure());
  EXPECT_EQ(first_failure(std::vector<Event>{good, Event()}), nullptr);
  EXPECT_EQ(first_failure({}), nullptr);
}

TEST(EventTest, WaitersAndCallbacksOfManyThreadsAllSeeItFireOnce) {
  for (int round = 0; round < testing::sweep_rounds(100); ++round) {
    const Event event = Event::pending();
    std::atomic<int> calls{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        event.then([&] {
          EXPECT_TRUE(event.fired());
          ++calls;
        });
        EXPECT_THROW(event.wait(), std::runtime_error);
      });
    }
    event.fire(failure("lost"));
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(calls, 3);
  }
}

TEST(EventTest, ACallbackGivenWhileOthersAreCalledComesAfterThem) {
  const Event event = Event::pending();
  std::promise<void> first_runs;
  std::promise<void> second_is_given;
  std::vector<int> order;
  event.then([&] {
    first_runs.set_value();
    second_is_given.get_future().wait();
    order.push_back(1);
  });
  std::thread stream([&] { event.fire(nullptr); });
  first_runs.get_future().wait();
  event.then([&] { order.push_back(2); });
  second_is_given.set_value();
  event.wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2})) << "and whoever has waited finds them done";
  stream.join();
}

}  // namespace
}  // namespace hydra
