#include "hydra/io/extent_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "hydra/io/faulty_block_io.h"
#include "hydra/testing/extent_store_conformance.h"

namespace hydra {
namespace testing {
namespace {

bool uring_is_there() {
  try {
    const TemporaryDirectory directory;
    OwnedStore store({.drives = {{directory.path(), Bytes(1 << 20)}}, .kind = BlockIoKind::kUring});
    return true;
  } catch (const StorageError&) {
    return false;
  }
}

ExtentStoreMaker maker(const char* name, BlockIoKind kind, int drives) {
  ExtentStoreMaker made;
  made.name = name;
  made.options = [kind, drives](const std::string& directory, Bytes size) {
    ExtentStoreOptions options;
    for (int i = 0; i < drives; ++i) options.drives.push_back({directory, size});
    options.kind = kind;
    return options;
  };
  if (kind == BlockIoKind::kUring) made.available = uring_is_there;
  return made;
}

// Small blocks and a short queue, and completions that come late and in another order.
ExtentStoreMaker disordered(const char* name, BlockIoKind kind) {
  ExtentStoreMaker made = maker(name, kind, 1);
  made.options = [inner = made.options](const std::string& directory, Bytes size) {
    ExtentStoreOptions options = inner(directory, size);
    options.block = Bytes(1 << 16);
    options.depth = 3;
    options.wrap = [](std::unique_ptr<BlockIo> io) {
      return make_faulty_block_io(std::move(io), {.disorder_seed = 11});
    };
    return options;
  };
  return made;
}

INSTANTIATE_TEST_SUITE_P(AllStores, ExtentStoreConformance,
                         ::testing::Values(maker("uring", BlockIoKind::kUring, 1),
                                           maker("threads", BlockIoKind::kThreads, 1),
                                           maker("memory", BlockIoKind::kMemory, 1),
                                           maker("three_drives", BlockIoKind::kThreads, 3),
                                           maker("three_drives_of_uring", BlockIoKind::kUring, 3),
                                           disordered("threads_in_disorder", BlockIoKind::kThreads),
                                           disordered("uring_in_disorder", BlockIoKind::kUring)),
                         [](const auto& info) { return info.param.name; });

TEST(ExtentStoreTest, TheMostUrgentOfWhatWaitsGoesFirst) {
  // One transfer at a time, so that the order of ends is the order of starts.
  OwnedStore store({.drives = {{"memory", Bytes(1 << 20)}},
                    .kind = BlockIoKind::kMemory,
                    .depth = 1,
                    .block = Bytes(4096),
                    .wrap = [](std::unique_ptr<BlockIo> io) {
                      return make_faulty_block_io(std::move(io), {.disorder_seed = 1});
                    }});
  const AlignedBytes bytes(256 << 10, 1);
  const auto big = store->write(*store->allocate(Bytes(256 << 10), "big"), bytes.data(), 5);
  const auto late = store->write(*store->allocate(Bytes(64 << 10), "late"), bytes.data(), 9);
  const auto urgent = store->write(*store->allocate(Bytes(4096), "urgent"), bytes.data(), 1);
  store.get(urgent);
  EXPECT_FALSE(store.has_ended(big));
  store->set_priority(late, 0);
  store.get(late);
  EXPECT_FALSE(store.has_ended(big));
  store.get(big);
}

TEST(ExtentStoreTest, LargeExtentsLieOnAllDrives) {
  const TemporaryDirectory directory;
  std::vector<int> operations(3, 0);
  std::size_t drive = 0;
  struct Counting final : BlockIo {
    Counting(std::unique_ptr<BlockIo> under, int& operations)
        : inner(std::move(under)), count(operations) {}
    std::string_view name() const noexcept override { return inner->name(); }
    void submit(std::span<const BlockOp> list) override {
      count += static_cast<int>(list.size());
      inner->submit(list);
    }
    void wait(std::vector<BlockDone>& done, Nanoseconds most) override { inner->wait(done, most); }
    void wake() noexcept override { inner->wake(); }
    std::unique_ptr<BlockIo> inner;
    int& count;
  };
  OwnedStore store({.drives = {{directory.path(), Bytes(64 << 20)},
                               {directory.path(), Bytes(64 << 20)},
                               {directory.path(), Bytes(64 << 20)}},
                    .kind = BlockIoKind::kThreads,
                    .wrap = [&](std::unique_ptr<BlockIo> io) {
                      return std::make_unique<Counting>(std::move(io), operations[drive++]);
                    }});
  const AlignedBytes bytes(48 << 20, 1);
  store.get(store->write(*store->allocate(Bytes(48 << 20), "large"), bytes.data(), 0));
  EXPECT_EQ(operations, (std::vector<int>{16, 16, 16}));
}

/// A drive of any size that holds zeros: it moves nothing, and keeps what it was asked to move.
class ZeroDrive final : public BlockIo {
 public:
  explicit ZeroDrive(std::vector<BlockOp>& seen) : seen_(seen) {}
  std::string_view name() const noexcept override { return "zeros"; }
  void submit(std::span<const BlockOp> operations) override {
    for (const BlockOp& operation : operations) {
      seen_.push_back(operation);
      done_.push_back({operation.tag, operation.bytes});
    }
  }
  void wait(std::vector<BlockDone>& done, Nanoseconds most) override {
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, most, [&] { return wake_ || !done_.empty(); });
    wake_ = false;
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
  }
  void wake() noexcept override {
    const std::lock_guard lock(mutex_);
    wake_ = true;
    woken_.notify_one();
  }

 private:
  std::vector<BlockOp>& seen_;
  std::vector<BlockDone> done_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
};

/// Address space that reads as zeros and takes no memory.
class SparseZeros {
 public:
  explicit SparseZeros(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)),
        data_(
            mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseZeros() { munmap(data_, bytes_); }
  SparseZeros(const SparseZeros&) = delete;
  SparseZeros& operator=(const SparseZeros&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/// Expects the operations to cover `bytes` from `data` on, and as many of the drive's from its
/// start on, each once.
void expect_cover(std::vector<BlockOp> operations, const std::byte* data, std::int64_t bytes) {
  std::sort(operations.begin(), operations.end(),
            [](const BlockOp& a, const BlockOp& b) { return a.offset < b.offset; });
  std::int64_t at = 0;
  for (const BlockOp& operation : operations) {
    ASSERT_EQ(operation.offset, at);
    ASSERT_EQ(operation.data, data + at);
    at += operation.bytes;
  }
  EXPECT_EQ(at, Bytes(bytes).rounded_up(kExtentAlignment).count());
}

TEST(ExtentStoreTest, AnExtentBeyondTwoGibibytesIsMovedWholeBesideAThousandSmallOnes) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 31) + 4097;
  std::vector<BlockOp> seen;
  OwnedStore store(
      {.drives = {{"zeros", Bytes(std::int64_t{3} << 30)}},
       .kind = BlockIoKind::kMemory,
       .block = Bytes(4 << 20),
       .wrap = [&](std::unique_ptr<BlockIo>) { return std::make_unique<ZeroDrive>(seen); }});
  const SparseZeros memory(std::int64_t{3} << 30);
  const auto large = store->allocate(Bytes(kLarge), "large");
  ASSERT_TRUE(large);
  std::vector<ExtentStore::RequestId> requests;
  requests.push_back(store->write(*large, memory.data(), 0));
  store.get(requests[0]);
  expect_cover(seen, memory.data(), kLarge);
  seen.clear();
  store.get(store->read(*large, memory.data(), 0));
  expect_cover(seen, memory.data(), kLarge);
  requests.clear();
  std::vector<ExtentStore::ExtentId> small;
  for (int i = 0; i < 1000; ++i) {
    small.push_back(*store->allocate(Bytes(1 + 37 * i), "small"));
    requests.push_back(store->write(small.back(), memory.data(), 0));
  }
  for (const auto request : requests) store.get(request);
  requests.clear();
  for (const auto extent : small) requests.push_back(store->read(extent, memory.data(), 0));
  for (const auto request : requests) store.get(request);
}

TEST(ExtentStoreTest, EachDriveSaysWhatItMovedAndHowDeepItsQueueWas) {
  OwnedStore store({.drives = {{"first", Bytes(8 << 20)}, {"second", Bytes(8 << 20)}},
                    .kind = BlockIoKind::kMemory,
                    .depth = 4,
                    .block = Bytes(4096),
                    .wrap = [](std::unique_ptr<BlockIo> io) {
                      return make_faulty_block_io(std::move(io), {.disorder_seed = 1});
                    }});
  const AlignedBytes bytes(1 << 20, 1);
  const auto extent = store->allocate(Bytes(1 << 20), "part");
  store.get(store->write(*extent, bytes.data(), 0));
  store.get(store->read(*extent, bytes.data(), 0));
  const auto drives = store->drive_stats();
  ASSERT_EQ(drives.size(), 2U);
  EXPECT_EQ(drives[0].directory, "first");
  EXPECT_EQ(drives[1].directory, "second");
  EXPECT_EQ(drives[0].read.bytes + drives[1].read.bytes, Bytes(1 << 20));
  for (const DriveStats& drive : drives) {
    EXPECT_EQ(drive.read.bytes, drive.written.bytes);
    EXPECT_GT(drive.read.bytes, Bytes(0));
    EXPECT_GT(drive.read.mean_depth, 1);
    EXPECT_LE(drive.read.mean_depth, 4);
    EXPECT_EQ(drive.in_flight, 0);
    EXPECT_EQ(drive.both, Nanoseconds(0));  // one after the other
    EXPECT_EQ(drive.busy(), drive.read.busy + drive.written.busy);
  }
}

TEST(ExtentStoreTest, OptionsOutOfRangeAreRefusedWithTheirNumbers) {
  const auto refusal = [](ExtentStoreOptions options) {
    try {
      ExtentStore store(std::move(options), [](ExtentStore::Done) {});
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const DriveOptions drive{"memory", Bytes(1 << 20)};
  EXPECT_NE(refusal({}).find("at least one drive"), std::string::npos);
  EXPECT_NE(refusal({.drives = {{"here", Bytes(100)}}}).find("100 B"), std::string::npos);
  EXPECT_NE(refusal({.drives = {drive}, .depth = 0}).find("depth is 0"), std::string::npos);
  EXPECT_NE(refusal({.drives = {drive}, .block = Bytes(5000)}).find("4 KiB"), std::string::npos);
}

}  // namespace
}  // namespace testing
}  // namespace hydra
