#include "engine/device_use.h"

#include <gtest/gtest.h>

#include <numeric>

namespace hydra {
namespace {

Nanoseconds spent_on(const DeviceUse::Spent& spent, Activity activity) {
  return spent[static_cast<std::size_t>(activity)];
}

TEST(DeviceUseTest, CountsEachActivityAndTheOneAtWork) {
  DeviceUse use(2, Nanoseconds(10));
  use.enter(1, Activity::kBusy, Nanoseconds(15));
  use.enter(1, Activity::kTransfer, Nanoseconds(40));
  EXPECT_FALSE(use.enter(1, Activity::kTransfer, Nanoseconds(45))) << "nothing new";
  const auto ended = use.enter(1, Activity::kBusy, Nanoseconds(50));
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->activity, Activity::kTransfer);
  EXPECT_EQ(ended->since, Nanoseconds(40));
  const auto spent = use.spent(1, Nanoseconds(100));
  EXPECT_EQ(spent_on(spent, Activity::kIdle), Nanoseconds(5));
  EXPECT_EQ(spent_on(spent, Activity::kBusy), Nanoseconds(75));
  EXPECT_EQ(spent_on(spent, Activity::kTransfer), Nanoseconds(10));
  EXPECT_EQ(std::accumulate(spent.begin(), spent.end(), Nanoseconds(0)), Nanoseconds(90));
}

TEST(DeviceUseTest, ADeviceThatIsNeverAskedIsIdle) {
  DeviceUse use(1, Nanoseconds(0));
  EXPECT_EQ(spent_on(use.spent(0, Nanoseconds(7)), Activity::kIdle), Nanoseconds(7));
}

}  // namespace
}  // namespace hydra
