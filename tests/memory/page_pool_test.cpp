#include "hydra/memory/page_pool.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/testing/in_child.h"
#include "hydra/testing/sweep.h"

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
  for (int round = 0; round < testing::sweep_rounds(3000); ++round) {
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

constexpr std::int64_t kPage = PagePool::kPageBytes;

/// Every page holds its own number, so that a page that is lost or moved twice is seen.
void number_pages(std::byte* data, std::int64_t bytes, std::int64_t first) {
  for (std::int64_t at = 0; at < bytes; at += kPage) {
    const std::int64_t number = first + at / kPage;
    std::memcpy(data + at, &number, sizeof number);
    std::memcpy(data + at + kPage - 8, &number, sizeof number);
  }
}

bool pages_are_numbered(const std::byte* data, std::int64_t bytes, std::int64_t first) {
  for (std::int64_t at = 0; at < bytes; at += kPage) {
    std::int64_t front = 0;
    std::int64_t back = 0;
    std::memcpy(&front, data + at, sizeof front);
    std::memcpy(&back, data + at + kPage - 8, sizeof back);
    if (front != first + at / kPage || back != front) return false;
  }
  return true;
}

TEST(PagePoolTest, RoundsUpToPagesAndCountsTheRoundedBytes) {
  PagePool pool(Bytes(4 * kPage));
  std::byte* one = pool.allocate(Bytes(1));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one) % kPage, 0U);
  EXPECT_EQ(pool.stats().used, Bytes(kPage));
  std::byte* none = pool.allocate(Bytes(0));
  ASSERT_NE(none, nullptr);
  EXPECT_NE(none, one);
  EXPECT_EQ(pool.stats().used, Bytes(2 * kPage));
  EXPECT_EQ(pool.allocate(Bytes(2 * kPage + 1)), nullptr);
  std::byte* rest = pool.allocate(Bytes(2 * kPage));
  EXPECT_NE(rest, nullptr);
  pool.free(one, Bytes(1));
  pool.free(none, Bytes(0));
  pool.free(rest, Bytes(2 * kPage));
  EXPECT_EQ(pool.stats().used, Bytes(0));
  EXPECT_EQ(pool.stats().peak_used, Bytes(4 * kPage));
}

TEST(PagePoolTest, ARequestBeyondEverythingIsRefusedAndLosesNothing) {
  PagePool pool(Bytes(1 << 20));
  pool.free(pool.allocate(Bytes(1 << 20)), Bytes(1 << 20));
  EXPECT_EQ(pool.allocate(Bytes((1 << 20) + 1)), nullptr);
  EXPECT_EQ(pool.allocate(Bytes(INT64_MAX)), nullptr);
  EXPECT_EQ(pool.stats().free_warm, Bytes(1 << 20));  // the refusal gave no page away
}

TEST(PagePoolTest, ANegativeCapacityIsRefused) {
  EXPECT_THROW(PagePool(Bytes(-1)), InvalidArgument);
}

TEST(PagePoolTest, AWarmRangeIsHandedOutAgainWithoutFreshPages) {
  PagePool pool(Bytes(8 << 20));
  for (int i = 0; i < 10; ++i) pool.free(pool.allocate(Bytes(3 << 20)), Bytes(3 << 20));
  EXPECT_EQ(pool.stats().fresh_pages, (3 << 20) / kPage);
  EXPECT_EQ(pool.stats().stitched_ranges, 0);
}

TEST(PagePoolTest, StitchingLeavesTheNeighboursContentAsItWas) {
  constexpr std::int64_t kPiece = 256 << 10;
  constexpr int kPieces = 32;
  PagePool pool(Bytes(kPieces * kPiece));
  std::vector<std::byte*> pieces;
  for (int i = 0; i < kPieces; ++i) {
    pieces.push_back(pool.allocate(Bytes(kPiece)));
    number_pages(pieces.back(), kPiece, 1000 * i);
  }
  for (int i = 0; i < kPieces; i += 2)
    pool.free(pieces[static_cast<std::size_t>(i)], Bytes(kPiece));
  const std::int64_t large_bytes = kPieces / 2 * kPiece;
  std::byte* large = pool.allocate(Bytes(large_bytes));
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(pool.stats().stitched_ranges, 1);
  number_pages(large, large_bytes, 1 << 20);
  for (int i = 1; i < kPieces; i += 2) {
    EXPECT_TRUE(pages_are_numbered(pieces[static_cast<std::size_t>(i)], kPiece, 1000 * i)) << i;
  }
  EXPECT_TRUE(pages_are_numbered(large, large_bytes, 1 << 20));
  pool.free(large, Bytes(large_bytes));
  for (int i = 1; i < kPieces; i += 2)
    pool.free(pieces[static_cast<std::size_t>(i)], Bytes(kPiece));
  EXPECT_EQ(pool.stats().used, Bytes(0));
}

TEST(PagePoolTest, ContentSurvivesStitchingWhileHeldUnderRandomLoads) {
  constexpr std::int64_t kCapacity = 32 << 20;
  struct Range {
    std::byte* data;
    std::int64_t bytes;
    std::int64_t first;
  };
  for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(testing::sweep_rounds(4));
       ++seed) {
    PagePool pool{Bytes(kCapacity)};
    SplitMix64 random(seed);
    std::vector<Range> held;
    std::int64_t next = 0;
    for (int round = 0; round < 600; ++round) {
      const auto pages = static_cast<std::int64_t>(random.below(random.below(4) == 0 ? 2000 : 60));
      const std::int64_t bytes = (pages + 1) * kPage;
      std::byte* data = pool.allocate(Bytes(bytes));
      if (data != nullptr) {
        number_pages(data, bytes, next);
        held.push_back({data, bytes, next});
        next += pages + 1;
      }
      while (data == nullptr || random.below(3) == 0) {
        if (held.empty()) break;
        const auto at = static_cast<std::ptrdiff_t>(random.below(held.size()));
        const Range range = held[static_cast<std::size_t>(at)];
        ASSERT_TRUE(pages_are_numbered(range.data, range.bytes, range.first));
        pool.free(range.data, Bytes(range.bytes));
        held.erase(held.begin() + at);
        if (data == nullptr && random.below(2) == 0) break;
      }
      if (random.below(50) == 0) {
        const Bytes most(static_cast<std::int64_t>(random.below(4 << 20)));
        pool.trim_to(most);
        EXPECT_LE(pool.stats().free_warm, most);
      }
      const auto stats = pool.stats();
      ASSERT_LE(stats.used + stats.free_warm, stats.capacity);
    }
    for (const Range& range : held) {
      EXPECT_TRUE(pages_are_numbered(range.data, range.bytes, range.first));
      pool.free(range.data, Bytes(range.bytes));
    }
    EXPECT_EQ(pool.stats().used, Bytes(0));
  }
}

TEST(PagePoolTest, TrimToKeepsWhatIsAllowedAndGivesTheRestBack) {
  PagePool pool(Bytes(16 * kPage));
  std::byte* data = pool.allocate(Bytes(16 * kPage));
  pool.free(data, Bytes(16 * kPage));
  pool.trim_to(Bytes(100 * kPage));
  EXPECT_EQ(pool.stats().free_warm, Bytes(16 * kPage));
  pool.trim_to(Bytes(5 * kPage));
  EXPECT_EQ(pool.stats().free_warm, Bytes(5 * kPage));
  pool.trim_to(Bytes(5 * kPage - 1));  // not a whole page less: a whole one goes
  EXPECT_EQ(pool.stats().free_warm, Bytes(4 * kPage));
  std::byte* again = pool.allocate(Bytes(16 * kPage));
  ASSERT_NE(again, nullptr);
  number_pages(again, 16 * kPage, 0);
  pool.free(again, Bytes(16 * kPage));
}

TEST(PagePoolTest, AlternatingSizesSettleIntoAStateWithoutFreshPages) {
  // As jobs do that take turns: the sum always fits, the sizes differ.
  PagePool pool(Bytes(24 << 20));
  const auto turn = [&](std::int64_t bytes) {
    std::vector<std::byte*> parts;
    for (std::int64_t at = 0; at + bytes <= 24 << 20; at += bytes) {
      parts.push_back(pool.allocate(Bytes(bytes)));
      ASSERT_NE(parts.back(), nullptr);
      number_pages(parts.back(), bytes, at);
    }
    for (std::byte* part : parts) pool.free(part, Bytes(bytes));
  };
  for (int i = 0; i < 3; ++i) {
    turn(3 << 20);
    turn(4 << 20);
  }
  const std::int64_t fresh = pool.stats().fresh_pages;
  for (int i = 0; i < 5; ++i) {
    turn(3 << 20);
    turn(4 << 20);
    turn(2 << 20);
  }
  EXPECT_EQ(pool.stats().fresh_pages, fresh);
}

TEST(PagePoolTest, ThreadsNeverShareAPageNorExceedTheCapacity) {
  PagePool pool(Bytes(8 << 20));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      SplitMix64 random(t);
      std::vector<std::pair<std::byte*, std::int64_t>> held;
      const auto owner = static_cast<std::int64_t>(t << 32);
      for (int round = 0; round < testing::sweep_rounds(400); ++round) {
        const std::int64_t bytes = static_cast<std::int64_t>(1 + random.below(200)) * kPage;
        if (std::byte* data = pool.allocate(Bytes(bytes))) {
          number_pages(data, bytes, owner);
          held.emplace_back(data, bytes);
        }
        while (held.size() > 4 || (!held.empty() && random.below(3) == 0)) {
          EXPECT_TRUE(pages_are_numbered(held.front().first, held.front().second, owner));
          pool.free(held.front().first, Bytes(held.front().second));
          held.erase(held.begin());
        }
        const auto stats = pool.stats();
        EXPECT_LE(stats.used + stats.free_warm, stats.capacity);
      }
      for (const auto& [data, bytes] : held) pool.free(data, Bytes(bytes));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().used, Bytes(0));
}

// What stays mapped beside a hole that trimming left, and what is mapped into the hole later, are
// two mappings, though they touch. Kernels before 6.17 move pages of one at a time and unmap the
// destination before they refuse more.
TEST(PagePoolTest, PagesBesideAHoleThatWasFilledAgainAreStitched) {
  constexpr std::int64_t kPiece = 1 << 20;
  PagePool pool(Bytes(256 << 20));
  int met = 0;
  for (int round = 0; round < 3; ++round) {
    pool.free(pool.allocate(Bytes(2 * kPiece)), Bytes(2 * kPiece));
    std::byte* front = pool.allocate(Bytes(kPiece));
    std::byte* back = pool.allocate(Bytes(kPiece));
    ASSERT_EQ(front + kPiece, back);
    number_pages(back, kPiece, 1000);
    // So that the kernel does not join it with its new neighbour, as it does not where the large
    // mapping is of huge pages.
    madvise(back, kPiece, MADV_DONTDUMP);
    pool.free(front, Bytes(kPiece));
    pool.trim();
    constexpr std::int64_t kSmall = 64 << 10;
    std::vector<std::byte*> small;  // until one touches what stayed
    while (small.size() < 2000 && (small.empty() || small.back() + kSmall != back)) {
      small.push_back(pool.allocate(Bytes(kSmall)));
    }
    met += small.back() + kSmall == back ? 1 : 0;
    ASSERT_TRUE(pages_are_numbered(back, kPiece, 1000));
    std::int64_t held = kPiece;
    for (std::byte* each : small) {
      number_pages(each, kSmall, 5000);
      pool.free(each, Bytes(kSmall));
      held += kSmall;
    }
    pool.free(back, Bytes(kPiece));
    const PagePool::Stats before = pool.stats();
    std::byte* all = pool.allocate(Bytes(held + kPage));  // more than any one free range
    number_pages(all, held + kPage, 0);
    EXPECT_TRUE(pages_are_numbered(all, held + kPage, 0));
    EXPECT_EQ(pool.stats().fresh_pages - before.fresh_pages, 1);
    EXPECT_EQ(pool.stats().moved_pieces - before.moved_pieces,
              static_cast<std::int64_t>(small.size()) + 1);
    pool.free(all, Bytes(held + kPage));
    EXPECT_EQ(pool.stats().used, Bytes(0));
    pool.trim();
  }
  if (met == 0) GTEST_SKIP() << "the kernel never fills such a hole here";
}

TEST(PagePoolTest, PinnedPagesAreNeverMoved) {
  constexpr std::int64_t kPiece = 256 << 10;
  PagePool pool(Bytes(16 * kPiece), {.pinned = true});
  std::vector<std::byte*> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(pool.allocate(Bytes(kPiece)));
  for (std::size_t i = 0; i < 16; i += 2) pool.free(pieces[i], Bytes(kPiece));
  std::byte* large = pool.allocate(Bytes(8 * kPiece));
  ASSERT_NE(large, nullptr);
  number_pages(large, 8 * kPiece, 0);
  EXPECT_EQ(pool.stats().stitched_ranges, 0);
  EXPECT_EQ(pool.stats().fresh_pages, 24 * kPiece / kPage);
  EXPECT_EQ(pool.stats().used + pool.stats().free_warm, Bytes(16 * kPiece));
  pool.free(large, Bytes(8 * kPiece));
  EXPECT_EQ(pool.allocate(Bytes(8 * kPiece)), large);
}

TEST(PagePoolTest, FreePagesAreHeldAsFarAsIsAllowedBesideWhatIsUsed) {
  PagePool pool(Bytes(100 * kPage), {.most_held = Bytes(10 * kPage)});
  std::byte* a = pool.allocate(Bytes(8 * kPage));
  std::byte* b = pool.allocate(Bytes(8 * kPage));
  EXPECT_EQ(pool.stats().used, Bytes(16 * kPage));
  pool.free(a, Bytes(8 * kPage));
  EXPECT_EQ(pool.stats().free_warm, Bytes(2 * kPage));
  std::byte* c = pool.allocate(Bytes(4 * kPage));
  EXPECT_EQ(pool.stats().free_warm, Bytes(0));
  pool.free(b, Bytes(8 * kPage));
  EXPECT_EQ(pool.stats().free_warm, Bytes(6 * kPage));
  pool.free(c, Bytes(4 * kPage));
  EXPECT_EQ(pool.stats().free_warm, Bytes(10 * kPage));
}

/// Has every later mremap of this process fail with ENOMEM.
bool forbid_moving() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mremap, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof program[0], program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(PagePoolTest, WherePagesCannotBeMovedFreshOnesServeAndTheCapacityHolds) {
  const int status = testing::in_child([] {
    constexpr std::int64_t kPiece = 256 << 10;
    PagePool pool(Bytes(8 * kPiece));
    std::vector<std::byte*> pieces;
    for (int i = 0; i < 8; ++i) pieces.push_back(pool.allocate(Bytes(kPiece)));
    for (std::size_t i = 1; i < 8; i += 2) number_pages(pieces[i], kPiece, 1000);
    for (std::size_t i = 0; i < 8; i += 2) pool.free(pieces[i], Bytes(kPiece));
    if (!forbid_moving()) return 77;
    std::byte* large = pool.allocate(Bytes(4 * kPiece));
    if (large == nullptr) return 1;
    number_pages(large, 4 * kPiece, 0);
    for (std::size_t i = 1; i < 8; i += 2) {
      if (!pages_are_numbered(pieces[i], kPiece, 1000)) return 2;
    }
    const PagePool::Stats stats = pool.stats();
    if (stats.used != stats.capacity || stats.free_warm != Bytes(0)) return 3;
    return stats.stitched_ranges == 0 ? 0 : 4;
  });
  if (status == 77) GTEST_SKIP() << "cannot install a seccomp filter here";
  EXPECT_EQ(status, 0);
}

/// Bytes of this process that may be written, as RLIMIT_DATA counts them.
std::int64_t data_bytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  std::int64_t kib = 0;
  while (file >> word) {
    if (word == "VmData:") file >> kib;
  }
  return kib << 10;
}

TEST(PagePoolTest, ARefusalInTheMiddleOfStitchingGivesEverythingBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is counted by the limit";
#endif
  const int status = testing::in_child([] {
    constexpr std::int64_t kPiece = 4 << 20;
    PagePool pool(Bytes(64 * kPiece));
    std::vector<std::byte*> pieces;
    for (int i = 0; i < 8; ++i) pieces.push_back(pool.allocate(Bytes(kPiece)));
    for (std::size_t i = 0; i < 8; i += 2) pool.free(pieces[i], Bytes(kPiece));
    const auto limit = static_cast<rlim_t>(data_bytes() + (2 << 20));
    const rlimit few{limit, RLIM_INFINITY};
    if (setrlimit(RLIMIT_DATA, &few) != 0) return 77;
    try {
      pool.allocate(Bytes(32 * kPiece));  // four pieces can be moved, 28 fresh ones are too many
      return 1;
    } catch (const SystemError&) {
    }
    const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_DATA, &all);
    if (pool.stats().used != Bytes(4 * kPiece)) return 2;
    if (pool.stats().free_warm > Bytes(4 * kPiece)) return 3;
    for (std::size_t i = 1; i < 8; i += 2) pool.free(pieces[i], Bytes(kPiece));
    const std::int64_t before = pool.stats().free_warm.count();
    std::byte* data = pool.allocate(Bytes(before));
    number_pages(data, before, 0);
    if (!pages_are_numbered(data, before, 0)) return 4;
    pool.free(data, Bytes(before));
    pool.trim();
    if (data_bytes() > static_cast<std::int64_t>(limit) - 8 * kPiece + (1 << 20))
      return 5;  // a leak
    return pool.stats().used == Bytes(0) && pool.stats().free_warm == Bytes(0) ? 0 : 6;
  });
  if (status == 77) GTEST_SKIP() << "cannot set the limit here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace hydra
