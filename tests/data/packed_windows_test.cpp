#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/data/text.h"

namespace hydra {
namespace {

/// Tokens 0, 1, 2, ...: a window is told by its first token.
std::shared_ptr<const std::vector<std::int32_t>> counted(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return std::make_shared<const std::vector<std::int32_t>>(std::move(tokens));
}

/// Returns the numbers of the windows of steps [first, end), in their order.
std::vector<std::int64_t> windows_of(PackedWindows& data, std::int64_t context, std::int64_t first,
                                     std::int64_t end) {
  std::vector<std::int64_t> windows;
  for (std::int64_t step = first; step < end; ++step) {
    const at::Tensor inputs = data.batch(step).inputs.at(0);
    for (std::int64_t row = 0; row < inputs.size(0); ++row) {
      windows.push_back(inputs[row][0].item<std::int64_t>() / context);
    }
  }
  return windows;
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_TRUE(torch::equal(a.inputs.at(0), b.inputs.at(0)));
  EXPECT_TRUE(torch::equal(a.side.at(0).second, b.side.at(0).second));
}

/// 30 windows of 4 tokens, 3 to a batch: an epoch is 10 steps.
constexpr std::int64_t kContext = 4;
constexpr std::int64_t kWindows = 30;
constexpr std::int64_t kEpoch = 10;

PackedWindows thirty_windows(std::uint64_t seed = 7, bool shuffle = true) {
  return {counted(kWindows * kContext + 1),
          {.batch_size = 3, .context = kContext, .seed = seed, .shuffle = shuffle}};
}

TEST(PackedWindowsTest, ABatchHasThePromisedShapeAndCounts) {
  PackedWindows data = thirty_windows();
  const Batch batch = data.batch(0);
  EXPECT_EQ(batch.rows, 3);
  EXPECT_EQ(batch.tokens, 12);
  EXPECT_EQ(batch.loss_denominator, 12.0);
  ASSERT_EQ(batch.inputs.size(), 1U);
  ASSERT_EQ(batch.side.size(), 1U);
  EXPECT_EQ(batch.side[0].first, "targets");
  for (const at::Tensor& tensor : {batch.inputs[0], batch.side[0].second}) {
    EXPECT_EQ(tensor.scalar_type(), at::kLong);
    EXPECT_EQ(tensor.sizes(), (at::IntArrayRef{3, kContext}));
  }
}

TEST(PackedWindowsTest, TargetsAreTheNextTokens) {
  PackedWindows data = thirty_windows();
  for (std::int64_t step = 0; step < kEpoch; ++step) {
    const Batch batch = data.batch(step);
    const at::Tensor& inputs = batch.inputs[0];
    EXPECT_TRUE(torch::equal(batch.side[0].second, inputs + 1));
    EXPECT_TRUE(torch::equal(inputs, inputs.narrow(1, 0, 1) + torch::arange(kContext)));
  }
}

TEST(PackedWindowsTest, EachWindowComesOnceInEachEpoch) {
  PackedWindows data = thirty_windows();
  ASSERT_EQ(data.windows(), kWindows);
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    const auto windows = windows_of(data, kContext, epoch * kEpoch, (epoch + 1) * kEpoch);
    const std::set<std::int64_t> distinct(windows.begin(), windows.end());
    EXPECT_EQ(distinct.size(), static_cast<std::size_t>(kWindows));
    EXPECT_EQ(*distinct.begin(), 0);
    EXPECT_EQ(*distinct.rbegin(), kWindows - 1);
  }
}

TEST(PackedWindowsTest, EveryEpochHasAnotherOrder) {
  PackedWindows data = thirty_windows();
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    orders.insert(windows_of(data, kContext, epoch * kEpoch, (epoch + 1) * kEpoch));
  }
  EXPECT_EQ(orders.size(), 4U);
}

TEST(PackedWindowsTest, WithoutShufflingEveryEpochIsInTheOrderOfTheText) {
  PackedWindows data = thirty_windows(7, false);
  std::vector<std::int64_t> expected(kWindows);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(windows_of(data, kContext, 0, kEpoch), expected);
  EXPECT_EQ(windows_of(data, kContext, kEpoch, 2 * kEpoch), expected);
}

TEST(PackedWindowsTest, TheSeedAloneSaysTheOrder) {
  PackedWindows data = thirty_windows(7);
  PackedWindows same = thirty_windows(7);
  PackedWindows other = thirty_windows(8);
  const auto order = windows_of(data, kContext, 0, 2 * kEpoch);
  EXPECT_EQ(order, windows_of(same, kContext, 0, 2 * kEpoch));
  EXPECT_NE(order, windows_of(other, kContext, 0, 2 * kEpoch));
}

TEST(PackedWindowsTest, ABatchDoesNotDependOnTheCallsBeforeIt) {
  PackedWindows data = thirty_windows();
  // Forth and back between epochs, and the same step twice.
  for (const std::int64_t step : {25, 3, 14, 3, 0, 1'000'000'007, 25}) {
    SCOPED_TRACE(step);
    PackedWindows fresh = thirty_windows();
    expect_same(data.batch(step), fresh.batch(step));
  }
}

TEST(PackedWindowsTest, ABatchRunsOnOverTheEndOfAnEpoch) {
  // 5 windows, 2 to a batch: the third batch has the last of one epoch and the first of the next.
  PackedWindows data(counted(5 * kContext + 1), {.batch_size = 2, .context = kContext, .seed = 1});
  const auto windows = windows_of(data, kContext, 0, 5);
  ASSERT_EQ(windows.size(), 10U);
  EXPECT_EQ(std::set<std::int64_t>(windows.begin(), windows.begin() + 5).size(), 5U);
  EXPECT_EQ(std::set<std::int64_t>(windows.begin() + 5, windows.end()).size(), 5U);
}

TEST(PackedWindowsTest, ABatchMayBeLargerThanTheText) {
  PackedWindows data(counted(2 * kContext + 1), {.batch_size = 7, .context = kContext});
  const auto windows = windows_of(data, kContext, 0, 1);
  for (std::size_t i = 0; i + 1 < windows.size(); i += 2) EXPECT_NE(windows[i], windows[i + 1]);
}

TEST(PackedWindowsTest, TokensThatDoNotFillAWindowAreLeftOut) {
  // The last target needs a token of its own: 2 * context tokens hold one window.
  const std::vector<std::int64_t> expected{1, 1, 2, 2};
  std::vector<std::int64_t> windows;
  for (const std::size_t tokens : {5U, 8U, 9U, 12U}) {
    windows.push_back(PackedWindows(counted(tokens), {.context = kContext}).windows());
  }
  EXPECT_EQ(windows, expected);
}

TEST(PackedWindowsTest, OneWindowIsEnough) {
  PackedWindows data(counted(kContext + 1), {.batch_size = 1, .context = kContext});
  EXPECT_EQ(windows_of(data, kContext, 0, 3), (std::vector<std::int64_t>{0, 0, 0}));
}

TEST(PackedWindowsTest, TooFewTokensAreRefusedWithBothNumbers) {
  for (const std::size_t tokens : {std::size_t{0}, std::size_t{1}, std::size_t{128}}) {
    try {
      PackedWindows(counted(tokens), {.context = 128});
      ADD_FAILURE() << tokens << " tokens were taken";
    } catch (const DataError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(std::to_string(tokens) + " tokens"), std::string::npos) << message;
      EXPECT_NE(message.find("129"), std::string::npos) << message;
    }
  }
}

TEST(PackedWindowsTest, ImpossibleSizesAreRefused) {
  EXPECT_THROW(PackedWindows(counted(100), {.batch_size = 0}), InvalidArgument);
  EXPECT_THROW(PackedWindows(counted(100), {.context = 0}), InvalidArgument);
  EXPECT_THROW(PackedWindows(counted(100), {.context = -5}), InvalidArgument);
}

TEST(PackedWindowsTest, SizesWhoseProductOverflowsAreRefused) {
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_THROW(PackedWindows(counted(100), {.batch_size = huge, .context = 4}), InvalidArgument);
  EXPECT_THROW(PackedWindows(counted(100), {.batch_size = 4, .context = huge}), InvalidArgument);
  EXPECT_THROW(PackedWindows(counted(100), {.batch_size = huge, .context = huge}), InvalidArgument);
}

TEST(PackedWindowsTest, TheTokensThatAreNotUsedAreCounted) {
  const PackedWindows data(counted(kWindows * kContext + 1 + 3), {.context = kContext});
  EXPECT_EQ(data.windows(), kWindows);
  EXPECT_EQ(data.unused_tokens(), 3);
}

TEST(PackedWindowsTest, JobsInDifferentEpochsThatShareASourceShuffleEachEpochOnce) {
  PackedWindows data = thirty_windows();
  for (std::int64_t step = 0; step < kEpoch; ++step) {
    for (std::int64_t job = 0; job < 4; ++job) data.batch(job * kEpoch + step);
  }
  EXPECT_EQ(data.shuffles(), 4);
}

TEST(PackedWindowsTest, NegativeStepsAreRefused) {
  PackedWindows data = thirty_windows();
  EXPECT_THROW(data.batch(-1), InvalidArgument);
}

TEST(PackedWindowsTest, ThreadsInDifferentEpochsGetTheirOwnOrders) {
  PackedWindows shared = thirty_windows();
  std::vector<std::vector<std::int64_t>> expected;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    expected.push_back(windows_of(shared, kContext, epoch * kEpoch, (epoch + 1) * kEpoch));
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    threads.emplace_back([&, epoch] {
      for (int round = 0; round < 20; ++round) {
        const auto order = windows_of(shared, kContext, epoch * kEpoch, (epoch + 1) * kEpoch);
        wrong += order == expected[static_cast<std::size_t>(epoch)] ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace hydra
