#include "hydra/core/inbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

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

}  // namespace
}  // namespace hydra
