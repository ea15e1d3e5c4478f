#include "hydra/core/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace hydra {
namespace {

/// A tree of files that stands in for /proc and /sys.
class MachineTest : public ::testing::Test {
 protected:
  MachineTest() {
    std::string name = (std::filesystem::temp_directory_path() / "hydra-machine-XXXXXX").string();
    root_ = mkdtemp(name.data()) != nullptr ? name : "";
    write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1000 kB\n");
    write("/proc/thread-self/status", "Name:\tx\nCpus_allowed_list:\t0-7\n");
  }
  ~MachineTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  void second_version(const std::string& own, const std::string& top = "/") const {
    write("/proc/self/cgroup", "0::" + own + "\n");
    write("/proc/self/mountinfo", "22 21 0:20 / /sys rw,nosuid - sysfs sysfs rw\n30 22 0:26 " +
                                      top + " /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n");
  }

  void first_version(const std::string& own, const std::string& top = "/") const {
    write("/proc/self/cgroup",
          "9:memory:" + own + "\n4:cpu,cpuacct:" + own + "\n1:name=systemd:/else\n");
    write("/proc/self/mountinfo",
          "31 30 0:27 " + top + " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n32 30 0:28 " +
              top + " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
              "33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n");
  }

  MachineLimits limits() const { return read_machine_limits(root_); }

  std::string root_;
};

TEST_F(MachineTest, WithoutCgroupsPhysicalMemoryAndAffinityHold) {
  EXPECT_EQ(limits().memory, Bytes(std::int64_t{16} << 30));
  EXPECT_EQ(limits().memory_source, "physical memory");
  EXPECT_EQ(limits().cores, 8);
  EXPECT_EQ(limits().cores_source, "affinity");
  EXPECT_EQ(to_string(limits()),
            "this process may use 16.00 GiB of memory (physical memory) and 8 cores (affinity)");
}

TEST_F(MachineTest, AffinityIsAListOfRanges) {
  write("/proc/thread-self/status", "Cpus_allowed_list:\t1,3-5,64-65\n");
  EXPECT_EQ(limits().cores, 6);
}

TEST_F(MachineTest, TheLeastLimitUpTheHierarchyOfTheSecondVersionHolds) {
  second_version("/jobs/mine");
  write("/sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  write("/sys/fs/cgroup/jobs/memory.max", "4294967296\n");
  write("/sys/fs/cgroup/jobs/mine/memory.high", "max\n");
  write("/sys/fs/cgroup/jobs/mine/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/jobs/cpu.max", "350000 100000\n");
  EXPECT_EQ(limits().memory, Bytes(std::int64_t{4} << 30));
  EXPECT_EQ(limits().memory_source, "limit in " + root_ + "/sys/fs/cgroup/jobs/memory.max");
  EXPECT_EQ(limits().cores, 3);
  EXPECT_EQ(limits().cores_source, "quota in " + root_ + "/sys/fs/cgroup/jobs/cpu.max");
  write("/sys/fs/cgroup/jobs/mine/memory.high", "1073741824\n");
  EXPECT_EQ(limits().memory, Bytes(1 << 30));
}

TEST_F(MachineTest, LimitsOfTheFirstVersionHold) {
  first_version("/docker/abc");
  write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "150000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().memory, Bytes(std::int64_t{2} << 30));
  EXPECT_EQ(limits().cores, 1);
  EXPECT_EQ(limits().cores_source,
            "quota in " + root_ + "/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us");
}

TEST_F(MachineTest, AContainerThatSeesAPartOfTheHierarchyFindsItsLimitAtTheMount) {
  first_version("/docker/abc", "/docker/abc");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(limits().memory, Bytes(1 << 30));
  second_version("/elsewhere", "/docker/abc");
  write("/sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(limits().memory, Bytes(512 << 20));
  second_version("/../../elsewhere");
  EXPECT_EQ(limits().memory, Bytes(512 << 20));
}

TEST_F(MachineTest, AQuotaBelowACoreIsOneCore) {
  second_version("/");
  write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(limits().cores, 1);
}

TEST_F(MachineTest, WhatIsUnreadableIsNoLimit) {
  second_version("/mine");
  write("/sys/fs/cgroup/mine/memory.max", "");
  write("/sys/fs/cgroup/mine/cpu.max", "100000\n");
  write("/sys/fs/cgroup/memory.max", "-5\n");
  write("/sys/fs/cgroup/cpu.max", "100000 0\n");
  EXPECT_EQ(limits().memory_source, "physical memory");
  EXPECT_EQ(limits().cores_source, "affinity");
  write("/proc/self/mountinfo", "nonsense - cgroup2\n - \n1 2 3 - cgroup cgroup\n\n");
  write("/proc/self/cgroup", ":::\nx\n");
  EXPECT_EQ(limits().cores, 8);
}

TEST_F(MachineTest, NothingAtAllFallsBackToTheSystemsOwnFigures) {
  std::filesystem::remove_all(root_ + "/proc");
  EXPECT_EQ(limits().memory,
            Bytes(static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(limits().cores, sysconf(_SC_NPROCESSORS_ONLN));
}

TEST(ThisMachineTest, AffinityOfTheCallingThreadCounts) {
  EXPECT_GT(read_machine_limits().memory, Bytes(0));
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return;
    EXPECT_EQ(read_machine_limits().cores, 1);
  }).join();
}

}  // namespace
}  // namespace hydra
