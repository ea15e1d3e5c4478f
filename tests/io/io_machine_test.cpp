// Directories, locks, limits and kernels that are not as one would like them.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <fstream>

#include "hydra/core/error.h"
#include "hydra/io/spill_file.h"
#include "hydra/testing/in_child.h"
#include "hydra/testing/owned_store.h"
#include "kept_log.h"

namespace hydra {
namespace testing {
namespace {

std::string refusal(const std::string& directory, Bytes size) {
  NullLogSink log;
  try {
    const SpillFile file(directory, size, log);
  } catch (const StorageError& error) {
    return error.what();
  }
  return "";
}

/// Writes and reads one extent; 0 when the bytes came back.
int try_store(ExtentStoreOptions options) {
  OwnedStore store(std::move(options));
  const AlignedBytes bytes(3 << 20, 1);
  const AlignedBytes back(3 << 20, 0);
  const auto extent = store->allocate(Bytes(3 << 20), "part");
  store.get(store->write(*extent, bytes.data(), 0));
  store.get(store->read(*extent, back.data(), 0));
  return back.same_as(bytes, 3 << 20) ? 0 : 1;
}

TEST(SpillFileTest, ItsSpaceIsReservedAndItHasNoName) {
  const TemporaryDirectory directory;
  NullLogSink log;
  const SpillFile file(directory.path(), Bytes(1 << 20), log);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  struct stat state {};
  ASSERT_EQ(fstat(file.descriptor(), &state), 0);
  EXPECT_EQ(state.st_size, 1 << 20);
  EXPECT_GE(state.st_blocks * 512, 1 << 20);
}

TEST(SpillFileTest, AMissingDirectoryIsMadeWithOneNotice) {
  const TemporaryDirectory directory;
  for (const char* spelling : {"/new", "/other/", "/third/."}) {
    KeptLog log;
    const SpillFile file(directory.path() + spelling, Bytes(4096), log);
    EXPECT_TRUE(std::filesystem::is_directory(directory.path() + spelling)) << spelling;
    EXPECT_EQ(log.lines_with("made the storage directory").size(), 1U);
    KeptLog again;
    const SpillFile second(directory.path() + spelling, Bytes(4096), again);
    EXPECT_TRUE(again.lines_with("made the storage directory").empty());
  }
}

TEST(SpillFileTest, ParentsAreNotMadeAndTheMissingOneIsNamed) {
  const TemporaryDirectory directory;
  const std::string parent = directory.path() + "/none";
  for (const char* spelling : {"/spill", "/spill/", "/spill//"}) {
    const std::string message = refusal(parent + spelling, Bytes(4096));
    EXPECT_NE(message.find("its parent " + parent + " is not there"), std::string::npos) << message;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_NE(refusal("", Bytes(4096)).find("names no directory"), std::string::npos);
}

TEST(SpillFileTest, ALinkToNowhereIsRefused) {
  const TemporaryDirectory directory;
  std::filesystem::create_symlink(directory.path() + "/gone", directory.path() + "/link");
  EXPECT_NE(refusal(directory.path() + "/link", Bytes(4096)).find("make the directory"),
            std::string::npos);
}

// Has a system call fail in this process from now on.
bool forbid(int call, int error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof program[0], program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(SpillFileTest, WithoutFallocateTheSpaceIsWrittenOnceWithOneNotice) {
  const TemporaryDirectory directory;
  for (const int error : {EOPNOTSUPP, ENOSYS}) {
    const int status = in_child([&] {
      if (!forbid(__NR_fallocate, error)) return 77;
      KeptLog log;
      const Bytes size((5 << 20) + 4096);
      const SpillFile file(directory.path(), size, log);
      struct stat state {};
      if (fstat(file.descriptor(), &state) != 0) return 1;
      if (state.st_size != size.count() || state.st_blocks * 512 < size.count()) return 2;
      if (log.lines_with("has no fallocate").size() != 1) return 3;
      return try_store({.drives = {{directory.path(), Bytes(4 << 20)}}});
    });
    if (status == 77) GTEST_SKIP() << "cannot install a seccomp filter here";
    EXPECT_EQ(status, 0);
  }
}

TEST(SpillFileTest, WithoutFallocateAFullDriveIsStillRefusedWithItsNumbers) {
  const TemporaryDirectory directory;
  const int status = in_child([&] {
    if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
    mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=4m") != 0) return 77;
    if (!forbid(__NR_fallocate, EOPNOTSUPP)) return 77;
    const std::string message = refusal(directory.path(), Bytes(64 << 20));
    const bool numbers = message.find("64.00 MiB") != std::string::npos &&
                         message.find("4.00 MiB are free") != std::string::npos;
    return numbers && refusal(directory.path(), Bytes(4 << 20)).empty() ? 0 : 1;
  });
  if (status == 77) GTEST_SKIP() << "cannot mount a small file system here";
  EXPECT_EQ(status, 0);
}

TEST(SpillFileTest, AFileInPlaceOfADirectoryIsRefused) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "x";
  EXPECT_NE(refusal(directory.path() + "/file", Bytes(4096)).find("name a directory"),
            std::string::npos);
}

TEST(SpillFileTest, AReadOnlyDirectoryIsRefused) {
  const TemporaryDirectory directory;
  std::filesystem::permissions(
      directory.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const int status = in_child([&] {
    // Root may write anywhere, so the child becomes somebody else.
    if (geteuid() == 0 && setuid(65534) != 0) return 77;
    return refusal(directory.path(), Bytes(4096)).find("may write to") != std::string::npos ? 0 : 1;
  });
  if (status == 77) GTEST_SKIP() << "cannot give up root here";
  EXPECT_EQ(status, 0);
}

TEST(SpillFileTest, AFullDriveIsRefusedWithNeededAndFreeBytes) {
  const TemporaryDirectory directory;
  const int status = in_child([&] {
    if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
    mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=4m") != 0) return 77;
    const std::string message = refusal(directory.path(), Bytes(64 << 20));
    return message.find("64.00 MiB") != std::string::npos &&
                   message.find("4.00 MiB are free") != std::string::npos
               ? 0
               : 1;
  });
  if (status == 77) GTEST_SKIP() << "cannot mount a small file system here";
  EXPECT_EQ(status, 0);
}

TEST(SpillFileTest, LeftoversOfDeadRunsGoAndThoseOfLiveOnesStay) {
  const TemporaryDirectory directory;
  const std::string dead = directory.path() + "/.hydra-spill-dead01";
  const std::string live = directory.path() + "/.hydra-spill-live01";
  const std::string other = directory.path() + "/hydra-spill-of-a-user";
  for (const std::string& path : {dead, live, other}) std::ofstream(path) << "bytes";
  const int holder = open(live.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(holder, LOCK_EX), 0);
  EXPECT_EQ(refusal(directory.path(), Bytes(4096)), "");
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(live));
  EXPECT_TRUE(std::filesystem::exists(other));
  close(holder);
}

TEST(SpillFileTest, AKilledProcessLeavesNothing) {
  const TemporaryDirectory directory;
  const int status = in_child([&] {
    NullLogSink log;
    const SpillFile file(directory.path(), Bytes(8 << 20), log);
    kill(getpid(), SIGKILL);
    return 0;
  });
  EXPECT_EQ(status, 100 + SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(ExtentStoreMachineTest, TwoProcessesShareADirectory) {
  const TemporaryDirectory directory;
  const auto cycles = [&] {
    for (int i = 0; i < 20; ++i) {
      if (try_store({.drives = {{directory.path(), Bytes(4 << 20)}}}) != 0) return 1;
    }
    return 0;
  };
  const pid_t beside = fork();
  if (beside == 0) _exit(cycles());
  EXPECT_EQ(in_child(cycles), 0);
  int status = 0;
  waitpid(beside, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(ExtentStoreMachineTest, AVanishedDirectoryLosesNothing) {
  const TemporaryDirectory directory;
  const std::string inner = directory.path() + "/inner";
  std::filesystem::create_directory(inner);
  OwnedStore store({.drives = {{inner, Bytes(4 << 20)}}});
  std::filesystem::remove_all(inner);
  const AlignedBytes bytes(1 << 20, 9);
  const AlignedBytes back(1 << 20, 0);
  const auto extent = store->allocate(Bytes(1 << 20), "part");
  store.get(store->write(*extent, bytes.data(), 0));
  store.get(store->read(*extent, back.data(), 0));
  EXPECT_TRUE(back.same_as(bytes, 1 << 20));
}

TEST(ExtentStoreMachineTest, AFileSystemWithoutDirectIoWorks) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm here";
  KeptLog log;
  EXPECT_EQ(try_store({.drives = {{"/dev/shm", Bytes(4 << 20)}}, .log = &log}), 0);
  EXPECT_LE(log.lines().size(), 2U);  // one for O_DIRECT, one for io_uring, where they are refused
}

TEST(ExtentStoreMachineTest, ALowLimitOfLockedMemoryIsNoObstacle) {
  const TemporaryDirectory directory;
  EXPECT_EQ(in_child([&] {
              const rlimit limit{64 << 10, 64 << 10};
              if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 77;
              return try_store({.drives = {{directory.path(), Bytes(4 << 20)}}});
            }),
            0);
}

TEST(ExtentStoreMachineTest, WhereUringIsForbiddenThreadsTakeOverWithOneNotice) {
  const TemporaryDirectory directory;
  const int status = in_child([&] {
    if (!forbid(__NR_io_uring_setup, EPERM)) return 77;  // as Docker does
    KeptLog log;
    ExtentStoreOptions options{.drives = {{directory.path(), Bytes(4 << 20)}}, .log = &log};
    {
      OwnedStore store(options);
      if (store->backend() != "threads") return 2;
      if (log.lines_with("io_uring is refused").size() != 1) return 3;
    }
    options.kind = BlockIoKind::kUring;
    try {
      OwnedStore store(options);
      return 4;
    } catch (const StorageError&) {
    }
    options.kind = BlockIoKind::kAutomatic;
    return try_store(options);
  });
  if (status == 77) GTEST_SKIP() << "cannot install a seccomp filter here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace testing
}  // namespace hydra
