#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/io/extent_store.h"
#include "hydra/testing/owned_store.h"

namespace hydra::testing {

/// What an ExtentStore must do whatever moves its blocks. The parameter makes the options of a
/// store of `size` bytes per drive in a directory.
struct ExtentStoreMaker {
  std::string name;
  std::function<ExtentStoreOptions(const std::string& directory, Bytes size)> options;
  std::function<bool()> available = [] { return true; };
};

class ExtentStoreConformance : public ::testing::TestWithParam<ExtentStoreMaker> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << GetParam().name << " is refused on this machine";
  }
  ExtentStoreOptions options(std::int64_t bytes) {
    return GetParam().options(directory_.path(), Bytes(bytes));
  }

  TemporaryDirectory directory_;
};

TEST_P(ExtentStoreConformance, EverySizeComesBackAsItWent) {
  OwnedStore store(options(64 << 20));
  for (const std::int64_t size :
       {1, 511, 512, 513, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, 14412000 * 2}) {
    const auto extent = store->allocate(Bytes(size), "bytes");
    ASSERT_TRUE(extent) << size;
    const AlignedBytes written(size, static_cast<std::uint64_t>(size));
    const AlignedBytes read(size, 0);
    store.get(store->write(*extent, written.data(), 0));
    store.get(store->read(*extent, read.data(), 0));
    EXPECT_TRUE(read.same_as(written, size)) << size;
    EXPECT_EQ(store->size(*extent), Bytes(size));
    store->free(*extent);
  }
  EXPECT_EQ(store->used(), Bytes(0));
}

TEST_P(ExtentStoreConformance, ManyRequestsAtOnceKeepTheirBytesApart) {
  OwnedStore store(options(64 << 20));
  SplitMix64 random(7);
  struct Item {
    ExtentStore::ExtentId extent;
    std::int64_t size;
    AlignedBytes bytes;
    AlignedBytes back;
  };
  std::vector<Item> items;
  std::vector<ExtentStore::RequestId> requests;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const auto size = static_cast<std::int64_t>(1 + random.below(400000));
    const auto extent = store->allocate(Bytes(size), "item " + std::to_string(i));
    ASSERT_TRUE(extent);
    items.push_back({*extent, size, AlignedBytes(size, i), AlignedBytes(size, 0)});
    requests.push_back(store->write(*extent, items.back().bytes.data(),
                                    static_cast<std::int64_t>(random.below(10))));
  }
  for (const auto request : requests) store.get(request);
  requests.clear();
  for (Item& item : items) requests.push_back(store->read(item.extent, item.back.data(), 0));
  for (const auto request : requests) store.get(request);
  for (const Item& item : items) EXPECT_TRUE(item.back.same_as(item.bytes, item.size));
}

TEST_P(ExtentStoreConformance, WritingAgainReplacesTheBytes) {
  OwnedStore store(options(8 << 20));
  const auto extent = store->allocate(Bytes(3 << 20), "part");
  const AlignedBytes first(3 << 20, 1);
  const AlignedBytes second(3 << 20, 2);
  const AlignedBytes back(3 << 20, 0);
  store.get(store->write(*extent, first.data(), 0));
  store.get(store->write(*extent, second.data(), 0));
  store.get(store->read(*extent, back.data(), 0));
  EXPECT_TRUE(back.same_as(second, 3 << 20));
}

TEST_P(ExtentStoreConformance, AFullStoreSaysSoAndHasRoomAgainAfterAFree) {
  OwnedStore store(options(8 << 20));
  const std::int64_t capacity = store->capacity().count();
  const auto whole = store->allocate(Bytes(capacity), "whole");
  ASSERT_TRUE(whole);
  EXPECT_FALSE(store->allocate(Bytes(1), "more"));
  EXPECT_EQ(store->used(), store->capacity());
  store->free(*whole);
  EXPECT_TRUE(store->allocate(Bytes(capacity), "again"));
}

TEST_P(ExtentStoreConformance, RoomInGapsIsUsed) {
  OwnedStore store(options(8 << 20));
  std::vector<ExtentStore::ExtentId> all;
  while (const auto extent = store->allocate(Bytes(1 << 16), "small")) all.push_back(*extent);
  for (std::size_t i = 0; i < all.size(); i += 2) store->free(all[i]);
  const Bytes free = store->capacity() - store->used();
  const auto extent = store->allocate(free, "in gaps");
  ASSERT_TRUE(extent);
  const AlignedBytes bytes(free.count(), 5);
  const AlignedBytes back(free.count(), 0);
  store.get(store->write(*extent, bytes.data(), 0));
  store.get(store->read(*extent, back.data(), 0));
  EXPECT_TRUE(back.same_as(bytes, free.count()));
}

TEST_P(ExtentStoreConformance, BytesAreCountedInBothDirections) {
  OwnedStore store(options(8 << 20));
  const auto extent = store->allocate(Bytes((2 << 20) + 5), "part");
  const AlignedBytes bytes((2 << 20) + 5, 1);
  store.get(store->write(*extent, bytes.data(), 0));
  store.get(store->read(*extent, bytes.data(), 0));
  store.get(store->read(*extent, bytes.data(), 0));
  EXPECT_EQ(store->stats(true).bytes, Bytes((2 << 20) + 4096));
  EXPECT_EQ(store->stats(false).bytes, 2 * Bytes((2 << 20) + 4096));
  EXPECT_GT(store->stats(false).busy, Nanoseconds(0));
  EXPECT_GE(store->stats(false).mean_depth, 1.0);
}

TEST_P(ExtentStoreConformance, ReadingWhatWasNeverWrittenIsRefused) {
  OwnedStore store(options(8 << 20));
  const auto extent = store->allocate(Bytes(4096), "part");
  const AlignedBytes bytes(4096, 1);
  EXPECT_THROW(store->read(*extent, bytes.data(), 0), InternalError);
}

TEST_P(ExtentStoreConformance, ClosingFinishesWhatIsUnderWay) {
  OwnedStore store(options(32 << 20));
  const AlignedBytes bytes(16 << 20, 1);
  const auto request = store->write(*store->allocate(Bytes(16 << 20), "part"), bytes.data(), 0);
  store->close();
  store->close();
  EXPECT_TRUE(store.has_ended(request));
}

TEST_P(ExtentStoreConformance, ThousandCyclesLeaveNoFileOpen) {
  OwnedStore store(options(8 << 20));
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const AlignedBytes bytes(4096, 1);
  const auto before = open_files();
  for (int i = 0; i < 1000; ++i) {
    const auto extent = store->allocate(Bytes(4096), "part");
    store.get(store->write(*extent, bytes.data(), 0));
    store->free(*extent);
  }
  EXPECT_EQ(open_files(), before);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExtentStoreConformance);

}  // namespace hydra::testing
