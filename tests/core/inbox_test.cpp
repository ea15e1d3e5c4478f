#include "hydra/core/inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "hydra/testing/sweep.h"

namespace hydra {
namespace {

TEST(InboxTest, GivesMessagesInTheOrderOfSending) {
  Inbox<int> inbox(8);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(inbox.push(i));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(inbox.pop(), i);
  EXPECT_EQ(inbox.try_pop(), std::nullopt);
}

TEST(InboxTest, ClosingRefusesNewMessagesAndDrainsOldOnes) {
  Inbox<int> inbox(8);
  inbox.push(1);
  inbox.close();
  EXPECT_FALSE(inbox.push(2));
  EXPECT_EQ(inbox.pop(), 1);
  EXPECT_EQ(inbox.pop(), std::nullopt);
}

TEST(InboxTest, LosesNothingBetweenManySendersWhenItIsFull) {
  Inbox<int> inbox(3);
  constexpr int kSenders = 4;
  constexpr int kEach = 2000;
  std::vector<std::thread> senders;
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&inbox, s] {
      for (int i = 0; i < kEach; ++i) inbox.push(s * kEach + i);
    });
  }
  std::vector<int> last(kSenders, -1);
  for (int n = 0; n < kSenders * kEach; ++n) {
    const int message = *inbox.pop();
    const auto sender = static_cast<std::size_t>(message / kEach);
    EXPECT_GT(message % kEach, last[sender]);  // each sender's own order is kept
    last[sender] = message % kEach;
  }
  for (std::thread& sender : senders) sender.join();
  for (const int seen : last) EXPECT_EQ(seen, kEach - 1);
}

TEST(InboxTest, ASenderWaitsWhileItIsFull) {
  Inbox<int> inbox(2);
  inbox.push(1);
  inbox.push(2);
  std::atomic<bool> sent{false};
  std::thread sender([&] {
    inbox.push(3);
    sent = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(sent);
  EXPECT_EQ(inbox.try_pop(), 1);
  sender.join();
  EXPECT_TRUE(sent);
  EXPECT_EQ(inbox.pop(), 2);
  EXPECT_EQ(inbox.pop(), 3);
}

TEST(InboxTest, ClosingWakesWaitingSendersAndTheReceiver) {
  Inbox<int> full(1);
  full.push(0);
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int i = 1; i <= 3; ++i) {
    threads.emplace_back([&, i] { refused += full.push(i) ? 0 : 1; });
  }
  Inbox<int> empty(1);
  std::thread receiver([&] { EXPECT_EQ(empty.pop(), std::nullopt); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  full.close();
  empty.close();
  for (std::thread& thread : threads) thread.join();
  receiver.join();
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(full.pop(), 0);
  EXPECT_EQ(full.try_pop(), std::nullopt);
}

TEST(InboxTest, EveryMessageIsEitherRefusedOrTakenWhenItIsClosedUnderLoad) {
  for (int round = 0; round < testing::sweep_rounds(50); ++round) {
    Inbox<int> inbox(4);
    std::atomic<int> accepted{0};
    std::vector<std::thread> senders;
    for (int s = 0; s < 3; ++s) {
      senders.emplace_back([&] {
        while (inbox.push(1)) ++accepted;
      });
    }
    int taken = 0;
    for (; taken < round; ++taken) EXPECT_TRUE(inbox.pop());
    inbox.close();
    while (inbox.pop()) ++taken;
    for (std::thread& sender : senders) sender.join();
    EXPECT_EQ(accepted, taken);
  }
}

TEST(InboxTest, CarriesMoveOnlyMessages) {
  Inbox<std::unique_ptr<int>> inbox(1);
  inbox.push(std::make_unique<int>(5));
  EXPECT_EQ(**inbox.pop(), 5);
}

TEST(InboxTest, TryPushRefusesWhatPushWouldWaitFor) {
  Inbox<int> inbox(2);
  EXPECT_TRUE(inbox.try_push(1));
  EXPECT_TRUE(inbox.try_push(2));
  EXPECT_FALSE(inbox.try_push(3));
  EXPECT_EQ(inbox.pop(), 1);
  EXPECT_TRUE(inbox.try_push(4));
  inbox.close();
  EXPECT_FALSE(inbox.try_push(5));
  EXPECT_EQ(inbox.pop(), 2);
  EXPECT_EQ(inbox.pop(), 4);
}

}  // namespace
}  // namespace hydra
