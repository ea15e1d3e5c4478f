// Whatever goes wrong with a transfer, the outcome is the right bytes or one typed error.

#include <gtest/gtest.h>

#include <cerrno>

#include "hydra/core/error.h"
#include "hydra/io/faulty_block_io.h"
#include "hydra/testing/owned_store.h"

namespace hydra {
namespace testing {
namespace {

using Kind = BlockFaults::Kind;

constexpr std::int64_t kSize = 5 << 16;  // five blocks

ExtentStoreOptions with_faults(const TemporaryDirectory& directory, BlockFaults faults) {
  ExtentStoreOptions options;
  options.drives = {{directory.path(), Bytes(4 << 20)}};
  options.kind = BlockIoKind::kThreads;
  options.block = Bytes(1 << 16);
  options.wrap = [faults](std::unique_ptr<BlockIo> io) {
    return make_faulty_block_io(std::move(io), faults);
  };
  return options;
}

/// Writes and reads an extent; returns "right", or the code of the error, or "WRONG".
std::string outcome(const BlockFaults& faults) {
  const TemporaryDirectory directory;
  OwnedStore store(with_faults(directory, faults));
  const AlignedBytes bytes(kSize, 3);
  const AlignedBytes back(kSize, 0);
  const auto extent = store->allocate(Bytes(kSize), "job 7 shard 2 moments");
  std::string result;
  try {
    store.get(store->write(*extent, bytes.data(), 0));
    store.get(store->read(*extent, back.data(), 0));
    result = back.same_as(bytes, kSize) ? "right" : "WRONG";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("job 7 shard 2 moments"), std::string::npos)
        << error.what();
    result = to_string(error.code());
  }
  EXPECT_TRUE(bytes.same_as(AlignedBytes(kSize, 3), kSize));  // what was written is as it was
  store->free(*extent);
  EXPECT_EQ(store->used(), Bytes(0));
  return result;
}

TEST(IoFaultsTest, ShortTransfersAreContinued) {
  for (std::int64_t n = 0; n < 12; ++n) {
    EXPECT_EQ(outcome({.kind = Kind::kShort, .first = n}), "right") << n;
  }
  EXPECT_EQ(outcome({.kind = Kind::kShort, .first = 0, .count = 1000}), "storage");
  EXPECT_EQ(outcome({.kind = Kind::kShort, .first = 0, .count = 20}), "right");
}

TEST(IoFaultsTest, InterruptionsAreTriedAgainAndNotForEver) {
  for (const int error : {EINTR, EAGAIN}) {
    EXPECT_EQ(outcome({.kind = Kind::kError, .first = 3, .count = 4, .error = error}), "right");
    EXPECT_EQ(outcome({.kind = Kind::kError, .first = 3, .count = 1000, .error = error}),
              "storage");
  }
}

TEST(IoFaultsTest, EveryFailingTransferIsOneTypedError) {
  for (std::int64_t n = 0; n < 10; ++n) {
    for (const int error : {EIO, ENOSPC, EROFS, EBADF}) {
      EXPECT_EQ(outcome({.kind = Kind::kError, .first = n, .error = error}), "storage") << n;
    }
  }
  EXPECT_EQ(outcome({.kind = Kind::kError, .first = 10}), "right");  // there are ten
}

TEST(IoFaultsTest, ATransferThatMovesNothingIsTriedAgainAndNotForEver) {
  EXPECT_EQ(outcome({.kind = Kind::kNothing, .first = 2, .count = 3}), "right");
  EXPECT_EQ(outcome({.kind = Kind::kNothing, .first = 2, .count = 1000}), "storage");
}

TEST(IoFaultsTest, EveryFlippedBitIsFound) {
  for (std::int64_t n = 0; n < 10; ++n) {
    EXPECT_EQ(outcome({.kind = Kind::kFlipBit, .first = n}), "corruption") << n;
  }
  EXPECT_EQ(outcome({.kind = Kind::kFlipBit, .first = 10}), "right");
}

TEST(IoFaultsTest, EveryLostWriteIsFound) {
  for (std::int64_t n = 0; n < 5; ++n) {
    EXPECT_EQ(outcome({.kind = Kind::kLost, .first = n}), "corruption") << n;
  }
}

TEST(IoFaultsTest, ALostSecondWriteOfAnExtentIsFound) {
  const TemporaryDirectory directory;
  OwnedStore store(with_faults(directory, {.kind = Kind::kLost, .first = 5, .count = 5}));
  const AlignedBytes first(kSize, 1);
  const AlignedBytes second(kSize, 2);
  const auto extent = store->allocate(Bytes(kSize), "part");
  store.get(store->write(*extent, first.data(), 0));
  store.get(store->write(*extent, second.data(), 0));
  EXPECT_THROW(store.get(store->read(*extent, first.data(), 0)), CorruptionError);
}

TEST(IoFaultsTest, OneRequestsFailureLeavesTheOthersWhole) {
  const TemporaryDirectory directory;
  OwnedStore store(with_faults(directory, {.kind = Kind::kError, .first = 7}));
  const AlignedBytes bytes(kSize, 3);
  std::vector<ExtentStore::RequestId> requests;
  std::vector<ExtentStore::ExtentId> extents;
  for (int i = 0; i < 4; ++i) {
    extents.push_back(*store->allocate(Bytes(kSize), "extent " + std::to_string(i)));
    requests.push_back(store->write(extents.back(), bytes.data(), 0));
  }
  int failed = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    if (store.wait(requests[i]) != nullptr) {
      ++failed;
      EXPECT_THROW(store->read(extents[i], bytes.data(), 0), InternalError);
      continue;
    }
    const AlignedBytes back(kSize, 0);
    store.get(store->read(extents[i], back.data(), 0));
    EXPECT_TRUE(back.same_as(bytes, kSize));
  }
  EXPECT_EQ(failed, 1);
}

TEST(IoFaultsTest, TwoHundredSeedsOfDisorderChangeNoByte) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_EQ(outcome({.kind = Kind::kShort,
                       .first = static_cast<std::int64_t>(seed % 10),
                       .disorder_seed = seed}),
              "right")
        << seed;
  }
}

}  // namespace
}  // namespace testing
}  // namespace hydra
