#include "hydra/memory/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "hydra/core/random.h"

namespace hydra {
namespace {

struct Held {
  std::byte* data;
  std::int64_t bytes;
  unsigned char pattern;
};

void fill(const Held& held) {
  std::memset(held.data, held.pattern, static_cast<std::size_t>(held.bytes));
}

bool intact(const Held& held) {
  for (std::int64_t i = 0; i < held.bytes; i += 509) {
    if (std::to_integer<unsigned char>(held.data[i]) != held.pattern) return false;
  }
  return true;
}

TEST(PagePoolTest, FailsExactlyWhenUsedAndRequestExceedTheCapacityWhateverTheOrderOfFrees) {
  // Not whole pages, as budgets may be.
  const std::int64_t capacity = (8 << 20) + 1234;
  PagePool pool{Bytes(capacity)};
  SplitMix64 random(7);
  std::vector<Held> held;
  std::int64_t used = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto wanted = static_cast<std::int64_t>(random.below(2 << 20)) + 1;
    const std::int64_t rounded = Bytes(wanted).rounded_up(PagePool::kPageBytes).count();
    if (random.below(2) == 0 || held.empty()) {
      std::byte* data = pool.allocate(Bytes(wanted));
      EXPECT_EQ(data != nullptr, used + rounded <= capacity);
      if (data == nullptr) continue;
      used += rounded;
      held.push_back({data, wanted, static_cast<unsigned char>(round)});
      fill(held.back());
    } else {
      const std::size_t at = random.below(held.size());
      EXPECT_TRUE(intact(held[at]));
      pool.free(held[at].data, Bytes(held[at].bytes));
      used -= Bytes(held[at].bytes).rounded_up(PagePool::kPageBytes).count();
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    const PagePool::Stats stats = pool.stats();
    EXPECT_EQ(stats.used, Bytes(used));
    EXPECT_LE(stats.used + stats.free_warm, stats.capacity);
  }
  for (const Held& rest : held) {
    EXPECT_TRUE(intact(rest));
    pool.free(rest.data, Bytes(rest.bytes));
  }
  EXPECT_EQ(pool.stats().used, Bytes(0));
  EXPECT_GT(pool.stats().stitched_ranges, 0);
}

TEST(PagePoolTest, ServesALargeRequestFromScatteredFreePagesWithoutFreshOnes) {
  PagePool pool(Bytes(8 << 20));
  std::vector<std::byte*> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(pool.allocate(Bytes(1 << 20)));
  for (int i = 0; i < 8; i += 2) pool.free(pieces[static_cast<std::size_t>(i)], Bytes(1 << 20));
  const std::int64_t fresh = pool.stats().fresh_pages;
  std::byte* large = pool.allocate(Bytes(4 << 20));
  ASSERT_NE(large, nullptr);
  std::memset(large, 1, 4 << 20);
  EXPECT_EQ(pool.stats().fresh_pages, fresh);
  pool.free(large, Bytes(4 << 20));
  for (int i = 1; i < 8; i += 2) pool.free(pieces[static_cast<std::size_t>(i)], Bytes(1 << 20));
}

TEST(PagePoolTest, TrimGivesFreePagesBack) {
  PagePool pool(Bytes(1 << 20));
  pool.free(pool.allocate(Bytes(1 << 20)), Bytes(1 << 20));
  EXPECT_EQ(pool.stats().free_warm, Bytes(1 << 20));
  pool.trim();
  EXPECT_EQ(pool.stats().free_warm, Bytes(0));
}

}  // namespace
}  // namespace hydra
