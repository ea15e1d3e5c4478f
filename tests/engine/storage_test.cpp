// The storage tier changes no bit, holds its budgets, and costs nothing while the host suffices.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "engine_fixture.h"
#include "hydra/core/random.h"
#include "hydra/io/faulty_block_io.h"
#include "hydra/testing/owned_store.h"
#include "kept_trace.h"

namespace hydra {
namespace {

using testing::small_job;
using testing::small_job_names;

int seeds(int everyday) { return long_run() ? 200 : everyday; }

RuntimeOptions with_storage(RuntimeOptions options, Bytes host_cache) {
  options.storage.drives = {{"memory", Bytes(64 << 20)}};
  options.storage.kind = BlockIoKind::kMemory;
  options.storage.host_cache = host_cache;
  return options;
}

void plant(RuntimeOptions& options, BlockFaults faults) {
  options.debug.wrap_drive = [faults](std::unique_ptr<BlockIo> io) {
    return make_faulty_block_io(std::move(io), faults);
  };
}

/// A job with its smallest device budget, the smallest cache that it takes there, and its bits.
struct Case {
  JobOptions job;
  testing::PlainResult expected;
  Bytes device;
  Bytes cache;
  Bytes state;   ///< of its parts
  Bytes drives;  ///< that they take, rounded up to blocks
};

Case make_case(JobOptions job) {
  Case made;
  made.expected = plain(job);
  made.device = smallest_budget(job);
  RuntimeOptions options = with_storage(test_runtime(1, made.device), Bytes(0));
  const Plan plan = Runtime(options).plan(job);
  made.cache = plan.host_cache;
  made.drives = plan.storage;
  made.state = Runtime(test_runtime(1, made.device)).plan(job).host_state - plan.host_state;
  made.job = std::move(job);
  return made;
}

const Case& case_of(const std::string& name, bool clip) {
  static auto& known = *new std::map<std::string, Case>;
  const std::string key = name + (clip ? "+clip" : "");
  if (!known.contains(key)) {
    JobOptions job = small_job(name, 200, 4);
    if (clip) job.max_gradient_norm = 0.1;
    known.emplace(key, make_case(std::move(job)));
  }
  return known.at(key);
}

Bytes moved(const Runtime& runtime, const std::string& link) {
  for (const auto& each : runtime.summary().links) {
    if (each.name == link) return each.bytes;
  }
  ADD_FAILURE() << "no link is named " << link;
  return Bytes(0);
}

void expect_balance(const Runtime& runtime) {
  EXPECT_EQ(runtime.host_budget().reserved(), Bytes(0));
  EXPECT_EQ(runtime.host_cache_budget().reserved(), Bytes(0));
  EXPECT_EQ(runtime.storage_budget()->reserved(), Bytes(0));
  for (const DeviceStats& device : runtime.device_stats()) EXPECT_EQ(device.in_use, Bytes(0));
}

/// What a finished job's last handle gives back comes back by a message.
void wait_for_balance(const Runtime& runtime) {
  for (int i = 0; i < 2000 && runtime.storage_budget()->reserved() > Bytes(0); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  expect_balance(runtime);
}

class StorageTest : public ::testing::TestWithParam<std::string> {};

TEST_P(StorageTest, HostCachesFromJustEnoughToPlentyGiveThePlainLoopsBits) {
  for (const bool clip : {false, true}) {
    const Case& each = case_of(GetParam(), clip);
    for (const int percent : {0, 25, 50, 100}) {
      SCOPED_TRACE(std::to_string(percent) + (clip ? " %, clipped" : " %"));
      const Bytes cache = std::max(each.cache, Bytes(each.state.count() * percent / 100));
      Runtime runtime(with_storage(test_runtime(1, each.device), cache));
      const JobHandle handle = runtime.submit(each.job);
      expect_plain_bits(handle, each.expected);
      EXPECT_EQ(handle.parameters_sha256(),
                testing::fingerprint(each.expected.weights, *each.job.model));
      EXPECT_LE(runtime.host_cache_budget().peak(), cache);
      if (percent == 0 && each.cache * 2 < each.state) {
        EXPECT_GT(moved(runtime, "host to storage"), Bytes(0));
        EXPECT_GT(moved(runtime, "storage to host"), Bytes(0));
      }
    }
  }
}

TEST_P(StorageTest, NothingIsWrittenWhenHostMemorySuffices) {
  const Case& each = case_of(GetParam(), false);
  Runtime runtime(with_storage(test_runtime(1, each.device), each.state));
  expect_plain_bits(runtime.submit(each.job), each.expected);
  EXPECT_EQ(moved(runtime, "host to storage"), Bytes(0));
  EXPECT_EQ(moved(runtime, "storage to host"), Bytes(0));
}

TEST_P(StorageTest, AModelThatFitsItsDeviceGivesThePlainLoopsBits) {
  const Case& each = case_of(GetParam(), true);
  RuntimeOptions options = with_storage(test_runtime(1, Bytes(64 << 20)), Bytes(0));
  const Plan plan = Runtime(options).plan(each.job);
  options.storage.host_cache = plan.host_cache;
  Runtime runtime(options);
  const JobHandle handle = runtime.submit(each.job);
  EXPECT_TRUE(handle.plan().fits_device);
  expect_plain_bits(handle, each.expected);
}

TEST_P(StorageTest, FourJobsOnOneToThreeDevicesGiveThePlainLoopsBits) {
  const Case& each = case_of(GetParam(), false);
  for (int devices = 1; devices <= 3; ++devices) {
    SCOPED_TRACE(devices);
    Runtime runtime(with_storage(test_runtime(devices, each.device), each.cache));
    std::vector<JobHandle> handles;
    for (int i = 0; i < 4; ++i) handles.push_back(runtime.submit(each.job));
    for (const JobHandle& handle : handles) expect_plain_bits(handle, each.expected);
    handles.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(SmallModels, StorageTest, ::testing::ValuesIn(small_job_names()),
                         [](const auto& info) { return info.param; });

TEST(StorageTest, HostileTimingLeavesEveryBitUnchanged) {
  for (int seed = 0; seed < seeds(15); ++seed) {
    SplitMix64 random(static_cast<std::uint64_t>(seed) + 500);
    const auto& name = small_job_names()[static_cast<std::size_t>(seed) % small_job_names().size()];
    const Case& each = case_of(name, random.below(2) == 0);
    const auto share = 100 + static_cast<std::int64_t>(random.below(200));
    RuntimeOptions options = with_storage(test_runtime(1 + seed % 3, each.device),
                                          Bytes(each.cache.count() * share / 100));
    for (auto& device : options.devices) {
      device.faults.delay_seed = random.next();
      device.faults.largest_delay = std::chrono::microseconds(200);
      device.faults.poison_on_release = true;
    }
    options.debug.evict_at_once = random.below(2) == 0;
    options.debug.reverse_ready_order = random.below(2) == 0;
    options.update_threads = 1 + static_cast<int>(random.below(2));
    BlockFaults faults;
    faults.disorder_seed = random.next();
    plant(options, faults);
    Runtime runtime(std::move(options));
    std::vector<JobHandle> handles;
    for (int i = 0; i < 4; ++i) handles.push_back(runtime.submit(each.job));
    for (const JobHandle& handle : handles) {
      SCOPED_TRACE(name + ", seed " + std::to_string(seed));
      expect_plain_bits(handle, each.expected);
    }
    handles.clear();
  }
}

TEST(StorageTest, ThreadsAndUringOnADriveGiveThePlainLoopsBits) {
  const testing::TemporaryDirectory directory;
  const Case& each = case_of("gpt2", true);
  for (const BlockIoKind kind : {BlockIoKind::kThreads, BlockIoKind::kAutomatic}) {
    RuntimeOptions options = with_storage(test_runtime(2, each.device), each.cache);
    options.storage.kind = kind;
    options.storage.drives = {{directory.path(), Bytes(1 << 20)},
                              {directory.path(), Bytes(1 << 20)}};
    Runtime runtime(std::move(options));
    expect_plain_bits(runtime.submit(each.job), each.expected);
    EXPECT_GT(moved(runtime, "host to storage"), Bytes(0));
  }
}

TEST(StorageTest, FrozenLayersGiveThePlainLoopsBits) {
  JobOptions job = small_job("gpt2", 201, 4);
  auto model = make_gpt2(testing::tiny_gpt2_options());
  model->freeze("embedding.*").freeze("block0.*");
  job.model = model;
  const Case each = make_case(job);
  Runtime runtime(with_storage(test_runtime(1, each.device), each.cache));
  expect_plain_bits(runtime.submit(each.job), each.expected);
}

TEST(StorageTest, AFineTuneStartsFromAnotherJobsWeights) {
  const Case& base = case_of("gpt2", false);
  Runtime runtime(with_storage(test_runtime(2, base.device), base.cache));
  JobOptions tune = small_job("gpt2", 202, 3);
  tune.initial_weights = std::make_shared<Weights>(runtime.submit(base.job).weights());
  expect_plain_bits(runtime.submit(tune), plain(tune));
}

TEST(StorageTest, WeightsStayUntilTheLastHandleGoesAndAreRefusedAfterTheRuntime) {
  const Case& each = case_of("conv_net", false);
  auto runtime = std::make_unique<Runtime>(with_storage(test_runtime(1, each.device), each.cache));
  std::optional<JobHandle> first = runtime->submit(each.job);
  const JobHandle second = runtime->submit(each.job);
  expect_plain_bits(*first, each.expected);
  expect_plain_bits(second, each.expected);
  const Bytes both = runtime->storage_budget()->reserved();
  first.reset();
  for (int i = 0; i < 2000 && runtime->storage_budget()->reserved() == both; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(runtime->storage_budget()->reserved() * 2, both);
  expect_plain_bits(second, each.expected);
  runtime.reset();
  EXPECT_THROW(second.weights(), InvalidArgument);
  EXPECT_EQ(second.parameters_sha256(),
            testing::fingerprint(each.expected.weights, *each.job.model));
}

TEST(StorageTest, PlanAndSummarySayWhatEachTierHolds) {
  const Case& each = case_of("gpt2", true);
  Runtime runtime(with_storage(test_runtime(1, each.device), each.cache));
  const JobHandle handle = runtime.submit(each.job);
  handle.get();
  std::vector<std::string> layers;
  for (const auto& layer : each.job.model->layers()) layers.push_back(layer.name);
  const Plan& plan = handle.plan();
  EXPECT_NE(plan.to_text(layers).find("storage: " + to_string(plan.storage)), std::string::npos);
  const RunSummary summary = runtime.summary();
  EXPECT_EQ(summary.storage_budget, Bytes(64 << 20));
  EXPECT_EQ(summary.storage_peak, plan.storage);
  EXPECT_EQ(summary.host_cache_budget, each.cache);
  EXPECT_EQ(summary.host_budget + summary.host_cache_budget, Bytes(std::int64_t{1} << 30));
  EXPECT_LE(summary.host_cache_peak, each.cache);
}

TEST(StorageTest, DrivesThatAreTooSmallAreRefusedAtSubmit) {
  const Case& each = case_of("gpt2", false);
  RuntimeOptions options = with_storage(test_runtime(1, each.device), each.cache);
  options.storage.drives[0].size = each.drives - Bytes(4096);
  Runtime less(options);
  EXPECT_THROW(less.submit(each.job), StorageError);
  options.storage.drives[0].size = each.drives;
  Runtime enough(options);
  expect_plain_bits(enough.submit(each.job), each.expected);
}

TEST(StorageTest, ACacheThatIsTooSmallIsRefusedAtSubmit) {
  const Case& each = case_of("gpt2", false);
  Runtime less(with_storage(test_runtime(1, each.device), each.cache - Bytes(1)));
  EXPECT_THROW(less.submit(each.job), OutOfHostMemory);
}

TEST(StorageTest, ACacheWithoutADriveOrBeyondHostMemoryIsRefused) {
  RuntimeOptions options = test_runtime(1, Bytes(1 << 20));
  options.storage.host_cache = Bytes(1 << 20);
  EXPECT_THROW(Runtime{options}, InvalidArgument);
  EXPECT_THROW(Runtime(with_storage(test_runtime(1, Bytes(1 << 20)), Bytes(std::int64_t{1} << 30))),
               InvalidArgument);
}

TEST(StorageTest, CancellingAtAnyMomentBalancesTheBudgets) {
  const Case& each = case_of("gpt2", false);
  for (int seed = 0; seed < seeds(10); ++seed) {
    SplitMix64 random(static_cast<std::uint64_t>(seed) + 900);
    Runtime runtime(with_storage(test_runtime(2, each.device), each.cache));
    std::vector<JobHandle> handles;
    for (int i = 0; i < 3; ++i) handles.push_back(runtime.submit(each.job));
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(20000)));
    handles[1].cancel();
    expect_plain_bits(handles[0], each.expected);
    expect_plain_bits(handles[2], each.expected);
    EXPECT_NE(handles[1].wait(), JobState::kFailed);
    handles.clear();
    wait_for_balance(runtime);
  }
}

bool is_typed(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const StorageError& error) {
    return std::string(error.what()).find("mlp") != std::string::npos;
  } catch (const CorruptionError& error) {
    return std::string(error.what()).find("mlp") != std::string::npos;
  } catch (...) {
    return false;
  }
}

/// The plain loop's bits, or an error of storage that names the job; false when it is that.
bool has_bits(const JobHandle& job, const testing::PlainResult& expected) {
  try {
    EXPECT_TRUE(same_bits(job.weights(), expected.weights));
    return true;
  } catch (const Error&) {
    EXPECT_TRUE(is_typed(std::current_exception())) << job.status().reason;
    return false;
  }
}

TEST(StorageTest, ABlockThatCameBackWrongIsNamedInATypedError) {
  const Case& each = case_of("mlp", false);
  RuntimeOptions options = with_storage(test_runtime(1, each.device), each.cache);
  BlockFaults faults;
  faults.kind = BlockFaults::Kind::kFlipBit;
  faults.first = 5;
  faults.count = std::int64_t{1} << 40;
  plant(options, faults);
  Runtime runtime(std::move(options));
  const JobHandle job = runtime.submit(each.job);
  EXPECT_THROW(job.get(), CorruptionError);
  const std::string reason = job.status().reason;
  EXPECT_NE(reason.find(job.name() + " shard "), std::string::npos) << reason;
  EXPECT_NE(reason.find("offset"), std::string::npos) << reason;
}

TEST(StorageTest, ADriveThatTakesNothingMoreFailsJobsAndNeverHangs) {
  const Case& each = case_of("mlp", false);
  for (const std::int64_t first : {0, 3, 20, 60}) {
    SCOPED_TRACE(first);
    RuntimeOptions options = with_storage(test_runtime(2, each.device), each.cache);
    BlockFaults faults;
    faults.kind = BlockFaults::Kind::kError;
    faults.error = ENOSPC;
    faults.first = first;
    faults.count = std::int64_t{1} << 40;
    plant(options, faults);
    Runtime runtime(std::move(options));
    {
      std::vector<JobHandle> handles;
      for (int i = 0; i < 3; ++i) handles.push_back(runtime.submit(each.job));
      for (const JobHandle& handle : handles) has_bits(handle, each.expected);
    }
    wait_for_balance(runtime);
  }
}

/// A drive on which transfers fail that begin below an offset.
class BreakableIo final : public BlockIo {
 public:
  BreakableIo(std::unique_ptr<BlockIo> inner, std::shared_ptr<std::atomic<int>> broken_below)
      : inner_(std::move(inner)), broken_below_(std::move(broken_below)) {}
  std::string_view name() const noexcept override { return inner_->name(); }
  void submit(std::span<const BlockOp> operations) override {
    for (const BlockOp& operation : operations) {
      if (operation.offset < *broken_below_) failing_.insert(operation.tag);
    }
    inner_->submit(operations);
  }
  void wait(std::vector<BlockDone>& done, Nanoseconds most) override {
    const std::size_t before = done.size();
    inner_->wait(done, most);
    for (std::size_t i = before; i < done.size(); ++i) {
      if (failing_.erase(done[i].tag) > 0) done[i].result = -EIO;
    }
  }
  void wake() noexcept override { inner_->wake(); }

 private:
  std::unique_ptr<BlockIo> inner_;
  std::shared_ptr<std::atomic<int>> broken_below_;
  std::set<std::uint64_t> failing_;
};

std::shared_ptr<std::atomic<int>> make_breakable(RuntimeOptions& options) {
  const auto broken = std::make_shared<std::atomic<int>>(0);
  options.debug.wrap_drive = [broken](std::unique_ptr<BlockIo> io) {
    return std::make_unique<BreakableIo>(std::move(io), broken);
  };
  return broken;
}

TEST(StorageTest, WeightsThatCannotBeReadAreATypedError) {
  const Case& each = case_of("mlp", false);
  RuntimeOptions options = with_storage(test_runtime(1, each.device), each.cache);
  const auto broken = make_breakable(options);
  Runtime runtime(std::move(options));
  std::vector<JobHandle> handles{runtime.submit(each.job), runtime.submit(each.job)};
  runtime.wait_all();
  *broken = 1 << 30;
  int failed = 0;
  for (const JobHandle& handle : handles) failed += has_bits(handle, each.expected) ? 0 : 1;
  EXPECT_GE(failed, 1);
  handles.clear();
  *broken = 0;
  wait_for_balance(runtime);
}

TEST(StorageTest, WeightsThatCannotBeWrittenAreLostAndOthersGoOn) {
  const Case& each = case_of("mlp", false);
  RuntimeOptions options = with_storage(test_runtime(1, each.device), each.state);
  const auto broken = make_breakable(options);
  Runtime runtime(std::move(options));
  std::vector<JobHandle> handles{runtime.submit(each.job)};
  expect_plain_bits(handles[0], each.expected);  // nothing has been written so far
  *broken = 2;                                   // a write and its retry
  handles.push_back(runtime.submit(each.job));   // wants the room of the first one's weights
  handles[1].wait();
  EXPECT_THROW(handles[0].weights(), StorageError);
  handles.erase(handles.begin());
  expect_plain_bits(handles[0], each.expected);
  handles.clear();
  wait_for_balance(runtime);
}

TEST(StorageTest, ADriveThatIsRetiredEndsItsJobsWithTypedErrorsAndHangsNobody) {
  const Case& each = case_of("mlp", false);
  for (std::int64_t n = 0; n < 150; n += long_run() ? 1 : 30) {
    SCOPED_TRACE(n);
    RuntimeOptions options = with_storage(test_runtime(1, each.device), each.cache);
    plant(options, {.kind = BlockFaults::Kind::kBroken, .first = n});
    Runtime runtime(std::move(options));
    int failed = 0;
    {
      const std::vector<JobHandle> handles{runtime.submit(each.job), runtime.submit(each.job)};
      for (const JobHandle& handle : handles) {
        if (has_bits(handle, each.expected)) continue;
        ++failed;
        if (handle.status().state != JobState::kFailed) continue;  // its weights cannot be read
        EXPECT_NE(handle.status().reason.find("retired"), std::string::npos);
      }
    }
    EXPECT_GE(failed, 1);
    wait_for_balance(runtime);
  }
}

TEST(StorageTest, TheTraceAndTheSummaryShowTheCacheTheDrivesAndTheirQueues) {
  const Case& each = case_of("mlp", false);
  const auto trace = std::make_shared<KeptTrace>();
  RuntimeOptions options = with_storage(test_runtime(1, each.device), each.cache);
  options.storage.drives = {{"first", Bytes(32 << 20)}, {"second", Bytes(32 << 20)}};
  options.trace = trace;
  RunSummary summary;
  {
    Runtime runtime(std::move(options));
    expect_plain_bits(runtime.submit(each.job), each.expected);
    summary = runtime.summary();
  }
  std::map<std::string, double> largest;
  for (const char* category : {"memory", "io"}) {
    for (const TraceEvent& counter : trace->of(TraceEvent::Kind::kCounter, category)) {
      largest[counter.name] = std::max(largest[counter.name], counter.value);
    }
  }
  EXPECT_GT(largest.at("host cache memory"), 0);
  EXPECT_LE(largest.at("host cache memory"), static_cast<double>(each.cache.count()));
  EXPECT_EQ(largest.at("storage memory"), static_cast<double>(each.drives.count()));
  EXPECT_TRUE(largest.contains("drive 0 queue") && largest.contains("drive 1 queue"));
  ASSERT_EQ(summary.drives.size(), 2U);
  EXPECT_EQ(summary.drives[1].directory, "second");
  EXPECT_GT(summary.drives[0].written + summary.drives[1].written, Bytes(0));
  EXPECT_GT(summary.drives[0].write_depth + summary.drives[1].write_depth, 0);
  ASSERT_TRUE(summary.links[0].hidden_seconds);
  EXPECT_LE(*summary.links[0].hidden_seconds, summary.links[0].seconds);
}

// One fault at every n-th transfer: the right bits, or a typed error; never a hang or a leak.
class StorageFaultTest : public ::testing::TestWithParam<BlockFaults::Kind> {};

TEST_P(StorageFaultTest, EveryNthTransferGivesTheRightBitsOrATypedErrorOfItsJob) {
  const Case& each = case_of("mlp", false);
  const std::int64_t stride = long_run() ? 1 : 5;
  int failed = 0;
  for (std::int64_t n = 0; n < 150; n += stride) {
    SCOPED_TRACE(n);
    RuntimeOptions options = with_storage(test_runtime(1, each.device), each.cache);
    BlockFaults faults;
    faults.kind = GetParam();
    faults.first = n;
    plant(options, faults);
    Runtime runtime(std::move(options));
    int failed_here = 0;
    {
      const std::vector<JobHandle> handles{runtime.submit(each.job), runtime.submit(each.job)};
      for (const JobHandle& handle : handles) {
        if (!has_bits(handle, each.expected)) ++failed_here;
      }
    }
    EXPECT_LE(failed_here, 1);
    failed += failed_here;
    wait_for_balance(runtime);
  }
  const bool mended = GetParam() == BlockFaults::Kind::kShort;
  EXPECT_EQ(failed > 0, !mended);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StorageFaultTest,
                         ::testing::Values(BlockFaults::Kind::kError, BlockFaults::Kind::kShort,
                                           BlockFaults::Kind::kFlipBit));

}  // namespace
}  // namespace hydra
