#include "engine/step_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hydra {
namespace {

using ::testing::ElementsAre;

TEST(StepProgramTest, RunsForwardThenTailThenBackwardInReverse) {
  EXPECT_THAT(step_program(3, 0),
              ElementsAre(Unit{UnitKind::kForward, 0}, Unit{UnitKind::kForward, 1},
                          Unit{UnitKind::kTail, 2}, Unit{UnitKind::kBackward, 1},
                          Unit{UnitKind::kBackward, 0}));
}

TEST(StepProgramTest, OneShardIsOneUnit) {
  EXPECT_THAT(step_program(1, 0), ElementsAre(Unit{UnitKind::kTail, 0}));
}

TEST(StepProgramTest, BackwardStopsAtTheFirstTrainableShard) {
  EXPECT_THAT(step_program(3, 1),
              ElementsAre(Unit{UnitKind::kForward, 0}, Unit{UnitKind::kForward, 1},
                          Unit{UnitKind::kTail, 2}, Unit{UnitKind::kBackward, 1}));
}

}  // namespace
}  // namespace hydra
