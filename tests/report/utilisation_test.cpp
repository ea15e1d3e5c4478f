#include "hydra/report/utilisation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace hydra {
namespace {

using namespace literals;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A device over 100 seconds: each second is a percent. The rest is busy.
Utilisation::Device device(int transfer, int unit, int supply, int idle) {
  Utilisation::Device made;
  made.name = "cpu0";
  made.busy = seconds(100 - transfer - unit - supply - idle);
  made.transfer_wait = seconds(transfer);
  made.unit_wait = seconds(unit);
  made.supply_wait = seconds(supply);
  made.idle = seconds(idle);
  made.budget = 64_MiB;
  made.peak = 32_MiB;
  return made;
}

Utilisation run_of(std::vector<Utilisation::Device> devices) {
  Utilisation run;
  run.wall = seconds(100);
  run.devices = std::move(devices);
  run.links = {{"host to cpu0", 3_GiB, seconds(40)}, {"cpu0 to host", 1_GiB, seconds(20)}};
  run.host = {1_GiB, 512_MiB};
  return run;
}

TEST(UtilisationTest, TheFiveTimesAddUp) { EXPECT_EQ(device(1, 2, 3, 4).total(), seconds(100)); }

TEST(BottleneckTest, BusyDevicesHaveNone) {
  EXPECT_EQ(bottleneck(run_of({device(10, 0, 0, 0)})), "none: devices busy (90 % of their time)");
  EXPECT_THAT(bottleneck(run_of({device(11, 0, 0, 0)})), Not(StartsWith("none")));
}

TEST(BottleneckTest, ABusyLinkIsNamed) {
  Utilisation run = run_of({device(30, 5, 5, 5)});
  run.links[0].busy = seconds(80);
  run.devices[0].peak = 64_MiB;  // full too: but more room would not make the link faster
  EXPECT_THAT(bottleneck(run),
              AllOf(StartsWith("link: host to cpu0 was busy 80 % of the wall time with 3.00 GiB"),
                    HasSubstr("devices waited 30 % of their time"), HasSubstr("more memory")));
  run.links[0].busy = seconds(79);
  EXPECT_THAT(bottleneck(run), Not(StartsWith("link")));
}

Utilisation over_storage(Utilisation::Device device, int busy) {
  Utilisation run = run_of({std::move(device)});
  run.drives = {{"/mnt/slow", 9_GiB, 3_GiB, seconds(busy)}, {"/mnt/idle", 1_GiB, {}, seconds(1)}};
  run.host_cache = {4_GiB, 4_GiB};
  run.storage = {40_GiB, 30_GiB};
  return run;
}

TEST(BottleneckTest, ABusyDriveIsNamedWhateverIsWaitedForAndNoDeviceMemoryIsAskedFor) {
  for (const auto& waiting : {device(30, 5, 5, 5), device(5, 30, 5, 5), device(5, 5, 30, 5)}) {
    EXPECT_THAT(bottleneck(over_storage(waiting, 85)),
                AllOf(StartsWith("storage: the drive of /mnt/slow was busy 85 % of the wall time "
                                 "(9.00 GiB read, 3.00 GiB written), and devices waited 30 %"),
                      HasSubstr("raise host_cache (peak 4.00 GiB of 4.00 GiB)"),
                      HasSubstr("more tokens per mini-batch"), HasSubstr("more drives"),
                      HasSubstr("more models in flight"), Not(HasSubstr("device more memory"))));
  }
  EXPECT_THAT(bottleneck(over_storage(device(5, 5, 5, 45), 85)), StartsWith("no job left"));
  EXPECT_THAT(bottleneck(over_storage(device(5, 5, 0, 0), 85)), StartsWith("none"));
}

TEST(BottleneckTest, ADriveThatExplainsTheWaitingForTransfersIsNamed) {
  // A model that is read, then computed, then read: neither is busy for long.
  EXPECT_THAT(bottleneck(over_storage(device(50, 0, 0, 0), 45)), StartsWith("storage: "));
  EXPECT_THAT(bottleneck(over_storage(device(50, 0, 0, 0), 39)), Not(StartsWith("storage")));
  EXPECT_THAT(bottleneck(over_storage(device(0, 50, 0, 0), 45)), StartsWith("models in flight"));
  Utilisation slow_link = over_storage(device(50, 0, 0, 0), 45);
  slow_link.links[0].busy = seconds(82);
  EXPECT_THAT(bottleneck(slow_link), StartsWith("link: "));
}

TEST(BottleneckTest, ACacheWithRoomNeedsNotBeRaised) {
  Utilisation run = over_storage(device(50, 0, 0, 0), 85);
  run.host_cache.peak = 3_GiB;
  EXPECT_THAT(bottleneck(run), AllOf(StartsWith("storage"), Not(HasSubstr("host_cache"))));
}

TEST(BottleneckTest, AShortRunOfFewStepsIsNotJudged) {
  Utilisation run = run_of({device(30, 0, 0, 0)});
  run.wall = seconds(9);  // nothing adds up either
  run.steps = 3;
  EXPECT_EQ(bottleneck(run), "unknown: the run was too short to judge (3 steps)");
  run.steps = 1;
  EXPECT_EQ(bottleneck(run), "unknown: the run was too short to judge (1 step)");
  run.steps = 10;
  EXPECT_THAT(bottleneck(run), HasSubstr("accounted"));
  run = run_of({device(30, 0, 0, 0)});
  run.steps = 3;  // of half a minute each
  EXPECT_THAT(bottleneck(run), StartsWith("micro-batch size"));
}

TEST(BottleneckTest, AFullDeviceThatWaitsForTransfersNeedsABudget) {
  Utilisation run = run_of({device(30, 5, 5, 5)});
  run.devices[0].peak = 58_MiB;
  EXPECT_THAT(bottleneck(run),
              AllOf(StartsWith("device budget: devices waited 30 % of their time for transfers"),
                    HasSubstr("cpu0 was full (peak 58.00 MiB of 64.00 MiB)"),
                    HasSubstr("raise the device's memory"), HasSubstr("lower micro_batch_size")));
  run.devices[0].peak = 57_MiB;
  EXPECT_THAT(bottleneck(run), Not(StartsWith("device budget")));
}

TEST(BottleneckTest, ADeviceWithRoomAndAFreeLinkNeedsLargerMicroBatches) {
  EXPECT_THAT(bottleneck(run_of({device(30, 5, 5, 5)})),
              AllOf(StartsWith("micro-batch size: devices waited 30 %"),
                    HasSubstr("the busiest link stood still 60 % of the wall time"),
                    HasSubstr("raise micro_batch_size")));
}

TEST(BottleneckTest, TransfersWithoutLinksAndBudgetsAreStillTold) {
  Utilisation run = run_of({device(30, 0, 0, 0)});
  run.links.clear();
  run.devices[0].budget = run.devices[0].peak = Bytes();
  EXPECT_THAT(bottleneck(run), StartsWith("micro-batch size"));
}

TEST(BottleneckTest, DevicesThatWaitForUnitsNeedMoreModels) {
  Utilisation run = run_of({device(10, 40, 5, 20)});
  EXPECT_THAT(bottleneck(run), AllOf(StartsWith("models in flight: devices waited 40 %"),
                                     HasSubstr("submit more jobs"), Not(HasSubstr("host_memory"))));
  run.host.peak = 1_GiB;
  EXPECT_THAT(bottleneck(run), AllOf(StartsWith("models in flight: "), HasSubstr("submit more"),
                                     HasSubstr("raise host_memory")));
}

TEST(BottleneckTest, AFullHostThatJobsWaitForIsNamed) {
  Utilisation run = run_of({device(5, 5, 25, 5)});
  run.host.peak = 922_MiB;
  EXPECT_THAT(bottleneck(run),
              AllOf(StartsWith("host memory: devices waited 25 % of their time"),
                    HasSubstr("peak 922.00 MiB of 1.00 GiB"), HasSubstr("raise host_memory")));
}

TEST(BottleneckTest, WithRoomInTheHostItIsTheDataThatIsWaitedFor) {
  EXPECT_THAT(bottleneck(run_of({device(5, 5, 25, 5)})),
              AllOf(StartsWith("data: devices waited 25 %"), HasSubstr("loader_depth")));
}

TEST(BottleneckTest, DevicesWithoutAJobNeedJobs) {
  EXPECT_THAT(bottleneck(run_of({device(5, 5, 5, 45)})),
              AllOf(StartsWith("no job left: devices had no job 45 %"),
                    HasSubstr("submit more jobs or use fewer devices")));
}

TEST(BottleneckTest, DevicesAreTakenTogether) {
  // One waits for units, but both together wait longest for transfers, and mostly the second.
  Utilisation run = run_of({device(10, 25, 0, 0), device(30, 0, 0, 0)});
  run.devices[1].name = "cpu1";
  run.devices[1].peak = 64_MiB;
  EXPECT_THAT(bottleneck(run),
              AllOf(StartsWith("device budget: devices waited 20 %"), HasSubstr("cpu1 was full")));
}

TEST(BottleneckTest, TimesThatDoNotAddUpSayNothing) {
  Utilisation run = run_of({device(30, 0, 0, 0)});
  run.devices[0].busy -= seconds(4);
  EXPECT_THAT(bottleneck(run), Not(StartsWith("unknown")));
  run.devices[0].busy -= seconds(2);
  EXPECT_EQ(bottleneck(run), "unknown: 94 % of the devices' time is accounted for");
  run.devices[0].busy += seconds(12);
  EXPECT_EQ(bottleneck(run), "unknown: 106 % of the devices' time is accounted for");
}

TEST(BottleneckTest, NothingMeasuredSaysNothing) {
  EXPECT_EQ(bottleneck(Utilisation()), "unknown: nothing was measured");
  Utilisation run = run_of({device(30, 0, 0, 0)});
  run.wall = seconds(0);
  EXPECT_EQ(bottleneck(run), "unknown: nothing was measured");
}

TEST(BottleneckTest, ThresholdsCanBeGiven) {
  BottleneckThresholds strict;
  strict.busy = 0.99;
  EXPECT_THAT(bottleneck(run_of({device(5, 0, 0, 0)}), strict), StartsWith("micro-batch size"));
}

}  // namespace
}  // namespace hydra
