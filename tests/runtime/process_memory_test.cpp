// What the process holds beside the budgets, and that it does not grow.

#include <malloc.h>

#include <fstream>

#include "../engine/engine_fixture.h"
#include "hydra/core/random.h"
#include "hydra/testing/random_data.h"

namespace hydra {
namespace {

using testing::small_job;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // which keeps freed memory, and shadows of all of it
#else
constexpr bool kSanitized = false;
#endif

/// The README's "beside the budgets".
constexpr std::int64_t kDeclaredOverhead = std::int64_t{96} << 20;

std::int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  ADD_FAILURE() << "/proc/self/status has no " << key;
  return 0;
}

std::int64_t resident() { return status_bytes("VmRSS:"); }

/// Reads the process's memory when a step of its job has ended.
class MemoryWatch final : public JobCallbacks {
 public:
  StepDecision on_step(const StepMetrics& metrics) override {
    if (metrics.step == first_) at_first = resident();
    largest_after = metrics.step > first_ ? std::max(largest_after, resident()) : 0;
    return {};
  }
  explicit MemoryWatch(std::int64_t first) : first_(first) {}
  std::int64_t at_first = 0;
  std::int64_t largest_after = 0;

 private:
  std::int64_t first_;
};

TEST(ProcessMemoryTest, TwoHundredStepsOnStorageGrowNothing) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep what is freed";
  JobOptions job = small_job("gpt2", 400, 200);
  const auto watch = std::make_shared<MemoryWatch>(50);
  job.callbacks = watch;
  RuntimeOptions options = test_runtime(1, smallest_budget(job));
  options.storage.kind = BlockIoKind::kThreads;
  options.storage.drives = {{::testing::TempDir(), Bytes(8 << 20)}};
  options.storage.host_cache = Bytes(8 << 20);
  options.storage.host_cache = Runtime(options).plan(job).host_cache;
  Runtime runtime(std::move(options));
  runtime.submit(job).get();
  EXPECT_LT(watch->largest_after - watch->at_first, 1 << 20)
      << watch->at_first << " bytes at step 50";
}

/// Batches of any shape up to the first one's.
class AnyShape final : public DataSource {
 public:
  AnyShape(std::int64_t rows, std::int64_t tokens) : rows_(rows), tokens_(tokens) {}
  Batch batch(std::int64_t step) override {
    SplitMix64 random(static_cast<std::uint64_t>(step));
    testing::RandomTokens::Options options{.rows = rows_, .tokens = tokens_};
    if (step > 0) {
      options.rows = 1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(rows_)));
      options.tokens =
          1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(tokens_)));
    }
    return testing::RandomTokens(options).batch(step);
  }

 private:
  std::int64_t rows_;
  std::int64_t tokens_;
};

// LibTorch's libraries keep what they prepared for a shape; that must have an end.
TEST(ProcessMemoryTest, RandomBatchShapesGrowNothingOnceTheyHaveBeenSeen) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep what is freed";
  JobOptions job = small_job("gpt2", 401, 600);
  Gpt2Options model = testing::tiny_gpt2_options();
  model.context = 16;
  job.model = make_gpt2(model);
  job.data = std::make_shared<AnyShape>(6, 16);
  job.micro_batch_size = 0;
  const auto watch = std::make_shared<MemoryWatch>(300);
  job.callbacks = watch;
  Runtime runtime(test_runtime(1, smallest_budget(job)));
  runtime.submit(job).get();
  EXPECT_LT(watch->largest_after - watch->at_first, 2 << 20);
}

TEST(ProcessMemoryTest, ImageBatchesOfAnySizeGrowNothingOnceTheyHaveBeenSeen) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep what is freed";
  class AnyRows final : public DataSource {
   public:
    Batch batch(std::int64_t step) override {
      SplitMix64 random(static_cast<std::uint64_t>(step));
      testing::RandomImages::Options options;
      options.rows = step == 0 ? 24 : 1 + static_cast<std::int64_t>(random.below(24));
      return testing::RandomImages(options).batch(step);
    }
  };
  JobOptions job = small_job("conv_net", 402, 300);
  job.data = std::make_shared<AnyRows>();
  job.micro_batch_size = 0;
  const auto watch = std::make_shared<MemoryWatch>(200);
  job.callbacks = watch;
  Runtime runtime(test_runtime(1, Bytes(64 << 20)));
  runtime.submit(job).get();
  EXPECT_LT(watch->largest_after - watch->at_first, 2 << 20);
}

TEST(ProcessMemoryTest, TheProcessHoldsNoMoreThanTheBudgetsAndTheDeclaredOverhead) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep what is freed";
  Gpt2Options model = testing::tiny_gpt2_options();
  model.layers = 6;
  model.width = 256;
  model.heads = 4;
  model.context = 64;
  model.vocabulary_size = 4096;
  JobOptions job = small_job("gpt2", 403, 3);
  job.model = make_gpt2(model);
  job.data = std::make_shared<testing::RandomTokens>(
      testing::RandomTokens::Options{.rows = 4, .tokens = 64, .vocabulary_size = 4096});
  malloc_trim(0);
  const std::int64_t before = resident();
  RuntimeOptions options = test_runtime(2, Bytes(24 << 20));
  options.host_memory = Bytes(200 << 20);
  const std::int64_t budgets = options.host_memory.count() + 2 * options.devices[0].memory.count();
  Runtime runtime(std::move(options));
  std::vector<JobHandle> jobs;
  for (int i = 0; i < 2; ++i) jobs.push_back(runtime.submit(job));
  for (const JobHandle& handle : jobs) handle.get();
  const std::int64_t held = status_bytes("VmHWM:") - before;
  EXPECT_LT(held, budgets + kDeclaredOverhead);
  // And most of it is what the budgets count: nothing large goes beside them.
  const Bytes counted = runtime.host_budget().peak() + runtime.device_stats()[0].peak_in_use +
                        runtime.device_stats()[1].peak_in_use;
  EXPECT_LT(held, counted.count() + kDeclaredOverhead)
      << held << " held, " << counted.count() << " counted";
  RecordProperty("held", std::to_string(held));
  RecordProperty("counted", std::to_string(counted.count()));
  std::printf("process %lld MiB, budgets' peaks %lld MiB\n", static_cast<long long>(held >> 20),
              static_cast<long long>(counted.count() >> 20));
}

}  // namespace
}  // namespace hydra
