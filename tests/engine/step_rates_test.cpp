#include "engine/step_rates.h"

#include <gtest/gtest.h>

namespace hydra {
namespace {

TEST(StepRatesTest, FollowTheScheduleUntilTheyAreChanged) {
  StepRates rates({.shape = LearningRateSchedule::Shape::kLinear, .peak = 1.0, .max_steps = 4});
  EXPECT_EQ(rates.at(1), 0.75);
  rates.change(2, 7.0);
  EXPECT_EQ(rates.at(1), 0.75);
  EXPECT_EQ(rates.at(2), 7.0);
  EXPECT_EQ(rates.at(3), 7.0);
}

TEST(StepRatesTest, GoBackToTheSchedule) {
  StepRates rates({.shape = LearningRateSchedule::Shape::kLinear, .peak = 1.0, .max_steps = 4});
  rates.change(1, 7.0);
  rates.change(3, std::nullopt);
  EXPECT_EQ(rates.at(2), 7.0);
  EXPECT_EQ(rates.at(3), 0.25);
}

TEST(StepRatesTest, TheStepBeforeTheLatestOfManyChangesKeepsItsOwn) {
  StepRates rates({.peak = 1.0});
  for (std::int64_t step = 1; step < 100; ++step) {
    rates.change(step, static_cast<double>(step));
    EXPECT_EQ(rates.at(step), static_cast<double>(step));
    EXPECT_EQ(rates.at(step - 1), step == 1 ? 1.0 : static_cast<double>(step - 1));
  }
}

}  // namespace
}  // namespace hydra
