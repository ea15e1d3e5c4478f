#include "hydra/optim/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>

#include "hydra/core/error.h"

namespace hydra {
namespace {

using Shape = LearningRateSchedule::Shape;
using ::testing::HasSubstr;

constexpr Shape kShapes[] = {Shape::kConstant, Shape::kLinear, Shape::kCosine};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Peak 0.5, warm-up over steps 0 to 9, decay over steps 10 to 110 to a tenth.
LearningRateSchedule schedule(Shape shape) { return {shape, 0.5, 10, 110, 0.1}; }

std::string refusal(const LearningRateSchedule& schedule) {
  try {
    schedule.validate();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LearningRateTest, WarmUpRisesLinearlyToThePeak) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(static_cast<int>(shape));
    for (std::int64_t step = 0; step < 10; ++step) {
      EXPECT_DOUBLE_EQ(schedule(shape).at(step), 0.05 * static_cast<double>(step + 1));
    }
  }
}

TEST(LearningRateTest, LastStepOfWarmUpAndTheNextHaveThePeak) {
  for (const Shape shape : kShapes) {
    for (const std::int64_t warmup : {1, 2, 10}) {
      SCOPED_TRACE(static_cast<int>(shape));
      const LearningRateSchedule rates{shape, 0.3, warmup, 100, 0.1};
      EXPECT_EQ(rates.at(warmup - 1), 0.3);
      EXPECT_EQ(rates.at(warmup), 0.3);
    }
  }
}

TEST(LearningRateTest, FirstStepHasThePeakWithoutWarmUp) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(static_cast<int>(shape));
    EXPECT_EQ((LearningRateSchedule{shape, 0.3, 0, 100, 0.1}.at(0)), 0.3);
  }
}

TEST(LearningRateTest, ConstantNeverChanges) {
  const LearningRateSchedule bounded = schedule(Shape::kConstant);
  for (const std::int64_t step : {10, 60, 109, 110, 1'000'000}) EXPECT_EQ(bounded.at(step), 0.5);
  const LearningRateSchedule unbounded{Shape::kConstant, 0.5};
  EXPECT_EQ(unbounded.at(0), 0.5);
  EXPECT_EQ(unbounded.at(std::int64_t{1} << 62), 0.5);
}

TEST(LearningRateTest, LinearFollowsItsFormula) {
  for (std::int64_t step = 10; step <= 110; ++step) {
    const double p = static_cast<double>(step - 10) / 100;
    EXPECT_DOUBLE_EQ(schedule(Shape::kLinear).at(step), 0.5 * (0.1 + 0.9 * (1 - p)));
  }
}

TEST(LearningRateTest, CosineFollowsItsFormula) {
  const LearningRateSchedule rates = schedule(Shape::kCosine);
  for (std::int64_t step = 10; step <= 110; ++step) {
    const double p = static_cast<double>(step - 10) / 100;
    EXPECT_NEAR(rates.at(step), 0.5 * (0.1 + 0.9 * (1 + std::cos(std::numbers::pi * p)) / 2),
                1e-15);
  }
  // A third, a half and two thirds of the way, where the cosine is 1/2, 0 and -1/2.
  const LearningRateSchedule thirds{Shape::kCosine, 1.0, 0, 6, 0.0};
  EXPECT_NEAR(thirds.at(2), 0.75, 1e-15);
  EXPECT_NEAR(thirds.at(3), 0.5, 1e-15);
  EXPECT_NEAR(thirds.at(4), 0.25, 1e-15);
}

TEST(LearningRateTest, DecayNeverRises) {
  for (const Shape shape : {Shape::kLinear, Shape::kCosine}) {
    SCOPED_TRACE(static_cast<int>(shape));
    for (std::int64_t step = 11; step <= 110; ++step) {
      EXPECT_LT(schedule(shape).at(step), schedule(shape).at(step - 1)) << step;
    }
  }
}

TEST(LearningRateTest, LastStepIsOneShortOfTheFinalFraction) {
  EXPECT_DOUBLE_EQ(schedule(Shape::kLinear).at(109), 0.5 * (0.1 + 0.9 * 0.01));
  const double cosine = schedule(Shape::kCosine).at(109);
  EXPECT_GT(cosine, 0.05);
  EXPECT_LT(cosine, 0.05 + 0.45 * 0.001);
}

TEST(LearningRateTest, StaysAtTheFinalFractionAfterTheEnd) {
  for (const Shape shape : {Shape::kLinear, Shape::kCosine}) {
    SCOPED_TRACE(static_cast<int>(shape));
    for (const std::int64_t step : {110, 111, 1'000'000}) {
      EXPECT_DOUBLE_EQ(schedule(shape).at(step), 0.05);
    }
    EXPECT_EQ((LearningRateSchedule{shape, 0.5, 10, 110, 0.0}.at(110)), 0.0);
    EXPECT_EQ((LearningRateSchedule{shape, 0.5, 10, 110, 1.0}.at(60)), 0.5);
  }
}

TEST(LearningRateTest, UsableSchedulesAreAccepted) {
  EXPECT_EQ(refusal({}), "accepted");
  EXPECT_EQ(refusal({Shape::kConstant, 0.0}), "accepted");
  EXPECT_EQ(refusal({Shape::kConstant, 0.1, 50, 0}), "accepted");
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(static_cast<int>(shape));
    EXPECT_EQ(refusal({shape, 0.1, 0, 1, 0.0}), "accepted");
    EXPECT_EQ(refusal({shape, 0.1, 99, 100, 1.0}), "accepted");
  }
}

TEST(LearningRateTest, UnusableNumbersAreRefusedByName) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(static_cast<int>(shape));
    for (const double peak : {-1e-9, kNan, kInfinity}) {
      EXPECT_THAT(refusal({shape, peak, 0, 100, 0.0}), HasSubstr("the learning rate is"));
    }
    for (const double fraction : {-0.1, 1.1, kNan, kInfinity}) {
      EXPECT_THAT(refusal({shape, 0.1, 0, 100, fraction}), HasSubstr("final_fraction"));
    }
    EXPECT_THAT(refusal({shape, 0.1, -1, 100, 0.0}), HasSubstr("warmup_steps is -1"));
  }
}

TEST(LearningRateTest, DecayNeedsStepsAfterWarmUp) {
  for (const Shape shape : {Shape::kLinear, Shape::kCosine}) {
    SCOPED_TRACE(static_cast<int>(shape));
    EXPECT_THAT(refusal({shape, 0.1, 0, 0, 0.0}), HasSubstr("max_steps (0)"));
    EXPECT_THAT(refusal({shape, 0.1, 0, -5, 0.0}), HasSubstr("max_steps (-5)"));
    EXPECT_THAT(refusal({shape, 0.1, 100, 100, 0.0}), HasSubstr("warmup_steps (100)"));
    EXPECT_THAT(refusal({shape, 0.1, 101, 100, 0.0}), HasSubstr("warmup_steps (101)"));
  }
}

TEST(ParseScheduleShapeTest, ReadsEveryName) {
  EXPECT_EQ(parse_schedule_shape("constant"), Shape::kConstant);
  EXPECT_EQ(parse_schedule_shape("linear"), Shape::kLinear);
  EXPECT_EQ(parse_schedule_shape("cosine"), Shape::kCosine);
}

TEST(ParseScheduleShapeTest, OtherNamesAreRefusedWithTheChoices) {
  for (const char* name : {"", "Cosine", "cosine ", "step"}) {
    SCOPED_TRACE(name);
    try {
      parse_schedule_shape(name);
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"" + std::string(name) + "\""));
      EXPECT_THAT(error.what(), HasSubstr("constant, linear or cosine"));
    }
  }
}

}  // namespace
}  // namespace hydra
