// Batches smaller than the first, in rows and in length, need no more than was planned.

#include <algorithm>

#include "../engine/engine_fixture.h"
#include "hydra/core/random.h"
#include "hydra/testing/random_data.h"

namespace hydra {
namespace {

using testing::RandomTokens;

/// Full batches at step 0, then any number of rows and tokens up to that.
class VaryingTokens final : public DataSource {
 public:
  explicit VaryingTokens(std::uint64_t seed) : seed_(seed) {}

  Batch batch(std::int64_t step) override {
    SplitMix64 random(mix_seed(seed_, {static_cast<std::uint64_t>(step)}));
    RandomTokens::Options options{.seed = seed_, .rows = 4, .tokens = 8, .vocabulary_size = 64};
    if (step > 0) {
      options.rows = 1 + static_cast<std::int64_t>(random.below(4));
      options.tokens = 1 + static_cast<std::int64_t>(random.below(8));
    }
    Batch made = RandomTokens(options).batch(step);
    if (random.below(4) == 0) ignore_all(made);
    return made;
  }

 private:
  // A batch that selects no token: its loss is 0, and so are its gradients.
  static void ignore_all(Batch& batch) {
    for (auto& [name, tensor] : batch.side) {
      if (name == "targets") tensor.fill_(-100);
    }
  }

  std::uint64_t seed_;
};

TEST(VaryingBatchesTest, AnyRowsAndLengthsTrainAtTheSmallestBudget) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    JobOptions job = testing::small_job("gpt2", seed, 8);
    job.data = std::make_shared<VaryingTokens>(seed);
    const auto expected = plain(job);
    Runtime runtime(test_runtime(1 + static_cast<int>(seed % 2), smallest_budget(job)));
    SCOPED_TRACE(seed);
    expect_plain_bits(runtime.submit(job), expected);
  }
}

/// Longer than the first batch from step 1 on.
class GrowingTokens final : public DataSource {
 public:
  Batch batch(std::int64_t step) override {
    return RandomTokens({.rows = step == 0 ? 2 : 4, .tokens = 8, .vocabulary_size = 64})
        .batch(step);
  }
};

TEST(VaryingBatchesTest, ALargerBatchThanTheFirstEndsTheJobWithTheNumbers) {
  JobOptions job = testing::small_job("gpt2", 1, 3);
  job.data = std::make_shared<GrowingTokens>();
  Runtime runtime(test_runtime(1, Bytes(1 << 20)));
  const JobHandle handle = runtime.submit(job);
  EXPECT_EQ(handle.wait(), JobState::kFailed);
  EXPECT_NE(handle.status().reason.find("4 rows"), std::string::npos) << handle.status().reason;
  EXPECT_NE(handle.status().reason.find("allows 2"), std::string::npos) << handle.status().reason;
}

/// As many rows, longer ones from step 1 on.
class LengtheningTokens final : public DataSource {
 public:
  Batch batch(std::int64_t step) override {
    return RandomTokens({.rows = 2, .tokens = step == 0 ? 4 : 8, .vocabulary_size = 64})
        .batch(step);
  }
};

TEST(VaryingBatchesTest, LongerRowsThanTheFirstBatchsEndTheJobWithTheNumbers) {
  JobOptions job = testing::small_job("gpt2", 1, 3);
  job.data = std::make_shared<LengtheningTokens>();
  Runtime runtime(test_runtime(1, Bytes(1 << 20)));
  const JobHandle handle = runtime.submit(job);
  EXPECT_THROW(handle.get(), DataError);
  EXPECT_NE(handle.status().reason.find("largest batch at step 0"), std::string::npos);
  EXPECT_EQ(handle.metrics().size(), 1U);
}

// Shapes, budgets just above the smallest: each trains with the plain loop's bits.
TEST(VaryingBatchesTest, RandomModelsAndShapesTrainWhereTheyNeedNineteenTwentiethsOfTheBudget) {
  for (std::uint64_t seed = 0; seed < (long_run() ? 100U : 8U); ++seed) {
    SplitMix64 random(seed + 900);
    const auto from = [&](std::int64_t least, std::int64_t most) {
      return least +
             static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most - least + 1)));
    };
    Gpt2Options options = testing::tiny_gpt2_options();
    options.layers = from(1, 4);
    options.heads = from(1, 3);
    options.width = options.heads * from(1, 24);
    options.context = from(1, 40);
    options.vocabulary_size = from(2, 300);
    options.head_chunk_tokens = from(1, 64);
    JobOptions job = testing::small_job("gpt2", seed, 3);
    job.model = make_gpt2(options);
    job.data = std::make_shared<RandomTokens>(
        RandomTokens::Options{.seed = seed,
                              .rows = from(1, 6),
                              .tokens = from(1, options.context),
                              .vocabulary_size = options.vocabulary_size});
    job.micro_batch_size = from(0, 4);
    if (random.below(2) == 0) job.max_gradient_norm = 0.1;
    const Bytes budget(smallest_budget(job).count() * 20 / 19);
    Runtime runtime(test_runtime(1 + static_cast<int>(seed % 2), budget));
    SCOPED_TRACE(seed);
    expect_plain_bits(runtime.submit(job), plain(job));
  }
}

// Rows of one element less than a thread, sizes that divide nothing.
TEST(VaryingBatchesTest, OddWidthsTrainAtTheSmallestBudget) {
  for (const std::int64_t width : {1, 3, 7, 17}) {
    Gpt2Options options = testing::tiny_gpt2_options();
    options.width = width;
    options.heads = 1;
    JobOptions job = testing::small_job("gpt2", 70, 3);
    job.model = make_gpt2(options);
    Runtime runtime(test_runtime(1, smallest_budget(job)));
    SCOPED_TRACE(width);
    expect_plain_bits(runtime.submit(job), plain(job));
  }
}

}  // namespace
}  // namespace hydra
