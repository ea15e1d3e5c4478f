// A ring whose system calls fail: memory stays the kernel's until it is done with it, every block
// ends once, and nothing is waited for in a spin.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <map>

#include "hydra/core/error.h"
#include "hydra/io/faulty_block_io.h"
#include "hydra/testing/owned_store.h"
#include "io/uring_block_io.h"
#include "kept_log.h"

namespace hydra {
namespace testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kBlock = 1 << 16;

/// An open file of a few blocks of known bytes.
class BlockFile {
 public:
  explicit BlockFile(std::int64_t blocks) : bytes_(blocks * kBlock, 5) {
    const std::string path = directory_.path() + "/blocks";
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(pwrite(file_, bytes_.data(), static_cast<std::size_t>(blocks * kBlock), 0),
              blocks * kBlock);
  }
  ~BlockFile() { close(file_); }
  int descriptor() const { return file_; }
  const std::byte* block(std::int64_t n) const { return bytes_.data() + n * kBlock; }

 private:
  TemporaryDirectory directory_;
  AlignedBytes bytes_;
  int file_ = -1;
};

bool holds(const AlignedBytes& memory, const std::byte* expected) {
  return std::memcmp(memory.data(), expected, static_cast<std::size_t>(kBlock)) == 0;
}

/// Fails call number `first` and `count - 1` after it.
std::function<int()> failing(int error, std::int64_t first, std::int64_t count) {
  return [=, n = std::int64_t{0}]() mutable {
    const std::int64_t number = n++;
    return number >= first && number < first + count ? -error : 0;
  };
}

constexpr std::int64_t kForEver = std::int64_t{1} << 60;

class RingFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const BlockFile file(1);
    try {
      make_uring_block_io(file.descriptor(), 1);
    } catch (const StorageError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// Waits until `count` completions have come; by tag.
  static std::map<std::uint64_t, std::int64_t> wait_for(BlockIo& io, std::size_t count) {
    std::map<std::uint64_t, std::int64_t> ends;
    const auto end = std::chrono::steady_clock::now() + seconds(20);
    while (ends.size() < count && std::chrono::steady_clock::now() < end) {
      std::vector<BlockDone> done;
      io.wait(done, seconds(20));
      for (const BlockDone& each : done) EXPECT_TRUE(ends.emplace(each.tag, each.result).second);
    }
    EXPECT_EQ(ends.size(), count);
    return ends;
  }
};

TEST_F(RingFaultsTest, ARefusedEntryIsNeverTakenByALaterCall) {
  const BlockFile file(2);
  const auto io = make_uring_block_io(file.descriptor(), 4, {.submit = failing(EBADF, 0, 1)});
  const AlignedBytes memory(kBlock, 1);
  const AlignedBytes as_it_was(kBlock, 1);
  const BlockOp first{false, 0, memory.data(), kBlock, 11};
  EXPECT_NO_THROW(io->submit({&first, 1}));
  EXPECT_LT(wait_for(*io, 1).at(11), 0);
  EXPECT_NE(io->failure().find("Bad file descriptor"), std::string::npos) << io->failure();
  // The next calls would go through: the memory of the first one is somebody else's by now.
  const AlignedBytes other(kBlock, 2);
  const BlockOp second{false, kBlock, other.data(), kBlock, 12};
  io->submit({&second, 1});
  EXPECT_LT(wait_for(*io, 1).at(12), 0);
  std::vector<BlockDone> done;
  io->wait(done, milliseconds(50));
  EXPECT_TRUE(done.empty());
  EXPECT_TRUE(holds(memory, as_it_was.data()));
}

TEST_F(RingFaultsTest, WhatTheKernelCannotTakeNowIsTakenLater) {
  for (const int error : {EAGAIN, EBUSY, EINTR, ENOMEM}) {
    const BlockFile file(3);
    const auto io = make_uring_block_io(file.descriptor(), 4, {.submit = failing(error, 1, 20)});
    std::vector<AlignedBytes> memory;
    for (std::uint64_t n = 0; n < 3; ++n) {
      memory.emplace_back(kBlock, 1);
      const BlockOp read{false, static_cast<std::int64_t>(n) * kBlock, memory.back().data(), kBlock,
                         n};
      io->submit({&read, 1});
    }
    for (const auto& [tag, result] : wait_for(*io, 3)) EXPECT_EQ(result, kBlock);
    for (std::size_t n = 0; n < 3; ++n) {
      EXPECT_TRUE(holds(memory[n], file.block(static_cast<std::int64_t>(n)))) << error;
    }
    EXPECT_EQ(io->failure(), "");
  }
}

TEST_F(RingFaultsTest, InFlightTransfersComeBackFromARingThatCannotBeWaitedFor) {
  const BlockFile file(2);
  const auto io = make_uring_block_io(file.descriptor(), 4, {.wait = failing(EINVAL, 0, kForEver)});
  const AlignedBytes memory(kBlock, 1);
  const BlockOp read{false, kBlock, memory.data(), kBlock, 3};
  io->submit({&read, 1});
  std::vector<BlockDone> none;
  EXPECT_EQ(wait_for(*io, 1).at(3), kBlock);
  EXPECT_TRUE(holds(memory, file.block(1)));
  // Nothing in flight: the failure is met, and neither thrown nor spun on.
  const std::clock_t before = std::clock();
  io->wait(none, milliseconds(300));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 5);
  EXPECT_NE(io->failure().find("Invalid argument"), std::string::npos) << io->failure();
}

TEST_F(RingFaultsTest, WaitingGoesOnAfterPassingErrors) {
  for (const int error : {EINTR, EAGAIN, ENOMEM}) {
    const BlockFile file(1);
    const auto io = make_uring_block_io(file.descriptor(), 4, {.wait = failing(error, 0, 10)});
    const AlignedBytes memory(kBlock, 1);
    const BlockOp read{false, 0, memory.data(), kBlock, 3};
    io->submit({&read, 1});
    EXPECT_EQ(wait_for(*io, 1).at(3), kBlock);
    std::vector<BlockDone> none;
    io->wake();
    io->wait(none, seconds(20));  // seen all the same
    EXPECT_TRUE(none.empty());
    EXPECT_EQ(io->failure(), "");
  }
}

/// The descriptors of this process's rings.
std::vector<int> ring_descriptors() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().find("io_uring") !=
        std::string::npos) {
      found.push_back(std::stoi(entry.path().filename().string()));
    }
  }
  return found;
}

TEST_F(RingFaultsTest, ARingThatSomebodyClosedIsAFailureAndNotTheEnd) {
  const BlockFile file(1);
  const auto io = make_uring_block_io(file.descriptor(), 4);
  const std::vector<int> rings = ring_descriptors();
  ASSERT_EQ(rings.size(), 1U);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  ASSERT_EQ(dup2(nothing, rings.front()), rings.front());
  close(nothing);
  const AlignedBytes memory(kBlock, 1);
  const BlockOp read{false, 0, memory.data(), kBlock, 3};
  io->submit({&read, 1});
  EXPECT_LT(wait_for(*io, 1).at(3), 0);
  EXPECT_NE(io->failure(), "");
}

constexpr std::int64_t kSize = 5 * kBlock;

ExtentStoreOptions over_ring(const BlockFile& file, UringFaults faults, LogSink& log) {
  ExtentStoreOptions options;
  options.drives = {{"the-directory", Bytes(4 << 20)}};
  options.kind = BlockIoKind::kMemory;
  options.block = Bytes(kBlock);
  options.log = &log;
  options.wrap = [&file, faults](std::unique_ptr<BlockIo>) {
    return make_uring_block_io(file.descriptor(), 16, faults);
  };
  return options;
}

/// Writes and reads two extents; says how each request ended.
std::string outcomes(OwnedStore& store) {
  std::string all;
  const AlignedBytes bytes(kSize, 3);
  const AlignedBytes back(kSize, 0);
  for (int round = 0; round < 2; ++round) {
    const auto extent = store->allocate(Bytes(kSize), "job 7 shard 2 moments");
    try {
      store.get(store->write(*extent, bytes.data(), 0));
      store.get(store->read(*extent, back.data(), 0));
      all += back.same_as(bytes, kSize) ? "right " : "WRONG ";
    } catch (const StorageError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("job 7 shard 2 moments"), std::string::npos) << message;
      EXPECT_NE(message.find("the-directory"), std::string::npos) << message;
      EXPECT_NE(message.find("retired"), std::string::npos) << message;
      EXPECT_FALSE(error.retryable());
      all += "storage ";
    }
    store->free(*extent);
  }
  return all;
}

TEST_F(RingFaultsTest, AHardFailureAtAnySubmissionRetiresTheDriveWithTypedErrors) {
  const BlockFile file(64);
  for (const int error : {EBADF, EFAULT, EINVAL, EOPNOTSUPP, ENXIO}) {
    bool passed = false;
    for (std::int64_t n = 0; n < 200 && !passed; ++n) {
      KeptLog log;
      OwnedStore store(over_ring(file, {.submit = failing(error, n, kForEver)}, log));
      const std::string ends = outcomes(store);
      passed = ends == "right right ";
      if (passed) break;
      EXPECT_TRUE(ends == "storage storage " || ends == "right storage ") << n << ends;
      EXPECT_EQ(log.lines_with("is retired").size(), 1U) << n;
      EXPECT_EQ(log.lines_with("the-directory").size(), 1U) << n;
    }
    EXPECT_TRUE(passed) << error;
  }
}

TEST_F(RingFaultsTest, PassingErrorsOfEveryCallChangeNoByte) {
  const BlockFile file(64);
  for (const int error : {EAGAIN, EBUSY, EINTR, ENOMEM}) {
    for (std::int64_t n = 0; n < 12; ++n) {
      KeptLog log;
      OwnedStore store(
          over_ring(file, {.submit = failing(error, n, 3), .wait = failing(error, n, 3)}, log));
      EXPECT_EQ(outcomes(store), "right right ");
      EXPECT_TRUE(log.lines().empty());
    }
  }
}

TEST(RetiredDriveTest, RequestsInFlightAndQueuedAndLaterAllEndWithItsName) {
  for (std::int64_t n = 0; n < 12; ++n) {
    KeptLog log;
    OwnedStore store({.drives = {{"the-directory", Bytes(8 << 20)}},
                      .kind = BlockIoKind::kMemory,
                      .depth = 2,
                      .block = Bytes(kBlock),
                      .log = &log,
                      .wrap = [n](std::unique_ptr<BlockIo> io) {
                        return make_faulty_block_io(
                            std::move(io), {.kind = BlockFaults::Kind::kBroken, .first = n});
                      }});
    const AlignedBytes bytes(kSize, 3);
    std::vector<ExtentStore::RequestId> requests;
    for (int i = 0; i < 3; ++i) {
      requests.push_back(store->write(*store->allocate(Bytes(kSize), "part"), bytes.data(), i));
    }
    std::size_t failed = 0;
    for (const auto request : requests) failed += store.wait(request) != nullptr ? 1 : 0;
    EXPECT_EQ(failed, static_cast<std::size_t>(3 - n / 5)) << n;
    EXPECT_EQ(outcomes(store), "storage storage ");
    EXPECT_EQ(log.lines_with("the-directory is retired").size(), 1U);
  }
}

TEST(RetiredDriveTest, NewExtentsGoToTheOtherDrives) {
  KeptLog log;
  int made = 0;
  OwnedStore store({.drives = {{"bad", Bytes(8 << 20)}, {"good", Bytes(4 << 20)}},
                    .kind = BlockIoKind::kMemory,
                    .block = Bytes(kBlock),
                    .log = &log,
                    .wrap = [&made](std::unique_ptr<BlockIo> io) {
                      const auto kind =
                          made++ == 0 ? BlockFaults::Kind::kBroken : BlockFaults::Kind::kNone;
                      return make_faulty_block_io(std::move(io), {.kind = kind});
                    }});
  const AlignedBytes bytes(kSize, 3);
  const auto lost = store->allocate(Bytes(kSize), "lost");
  EXPECT_THROW(store.get(store->write(*lost, bytes.data(), 0)), StorageError);
  EXPECT_EQ(outcomes(store), "right right ");
}

/// Throws from the first calls, as a BlockIo must not.
struct ThrowingIo final : BlockIo {
  ThrowingIo(std::unique_ptr<BlockIo> under, int submits, int waits)
      : inner(std::move(under)), bad_submits(submits), bad_waits(waits) {}
  std::string_view name() const noexcept override { return inner->name(); }
  void submit(std::span<const BlockOp> list) override {
    if (bad_submits-- > 0) throw std::runtime_error("no submission");
    inner->submit(list);
  }
  void wait(std::vector<BlockDone>& done, Nanoseconds most) override {
    if (bad_waits-- > 0) throw std::runtime_error("no waiting");
    inner->wait(done, most);
  }
  void wake() noexcept override { inner->wake(); }
  std::unique_ptr<BlockIo> inner;
  int bad_submits;
  int bad_waits;
};

TEST(RetiredDriveTest, AnInterfaceThatThrowsEndsRequestsAndNotTheProcess) {
  for (const auto& [submits, waits] : std::vector<std::pair<int, int>>{{1, 0}, {0, 3}, {2, 2}}) {
    KeptLog log;
    OwnedStore store({.drives = {{"the-directory", Bytes(8 << 20)}},
                      .kind = BlockIoKind::kMemory,
                      .block = Bytes(kBlock),
                      .log = &log,
                      .wrap = [s = submits, w = waits](std::unique_ptr<BlockIo> io) {
                        return std::make_unique<ThrowingIo>(std::move(io), s, w);
                      }});
    const AlignedBytes bytes(kSize, 3);
    const auto extent = store->allocate(Bytes(kSize), "part");
    const auto failure = store.wait(store->write(*extent, bytes.data(), 0));
    EXPECT_EQ(failure != nullptr, submits > 0);  // what had been taken was done
    EXPECT_EQ(outcomes(store), "storage storage ");
    EXPECT_EQ(log.lines().size(), 1U);
  }
}

}  // namespace
}  // namespace testing
}  // namespace hydra
