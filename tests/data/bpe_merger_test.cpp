#include "data/bpe_merger.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "hydra/core/random.h"

namespace hydra::detail {
namespace {

using Ids = std::vector<std::int32_t>;

std::array<std::int32_t, 256> identity() {
  std::array<std::int32_t, 256> tokens{};
  for (int byte = 0; byte < 256; ++byte) tokens[byte] = byte;
  return tokens;
}

/// The published algorithm: merge the pair that comes first in the list wherever it occurs, again
/// and again. It differs from one merge at a time only where a merge makes a pair of lower rank.
Ids slow(const std::vector<BpeMerge>& merges, const std::string& piece) {
  Ids ids;
  for (const char c : piece) ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    std::size_t best = merges.size();
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (std::size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
          best = rank;
          place = i;
        }
      }
    }
    if (best == merges.size()) return ids;
    ids[place] = merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

/// Merges as training makes them: each joins two tokens that are there already. In the shuffled
/// list a merge may come before those that make its parts.
std::vector<BpeMerge> random_merges(SplitMix64& random, bool shuffled) {
  std::vector<std::int32_t> tokens{'a', 'b', 'c'};
  std::map<std::pair<std::int32_t, std::int32_t>, bool> seen;
  std::vector<BpeMerge> merges;
  for (std::int32_t id = 256; id < 290; ++id) {
    const auto left = tokens[random.below(tokens.size())];
    const auto right = tokens[random.below(tokens.size())];
    if (!seen.emplace(std::pair(left, right), true).second) continue;
    merges.push_back({left, right, id});
    tokens.push_back(id);
  }
  for (std::size_t i = merges.size(); shuffled && i > 1; --i) {
    std::swap(merges[i - 1], merges[random.below(i)]);
  }
  return merges;
}

TEST(BpeMergerTest, MergesWhatComesFirstInTheListLeftmostFirst) {
  SplitMix64 random(12);
  BpeMerger::Scratch scratch;
  for (int round = 0; round < 400; ++round) {
    const auto merges = random_merges(random, round % 2 == 1);
    const BpeMerger merger(merges, identity());
    std::string piece;
    for (std::uint64_t i = random.below(40); i > 0; --i) {
      piece += static_cast<char>('a' + random.below(3));
    }
    Ids ids;
    merger.encode(piece, scratch, ids);
    ASSERT_EQ(ids, slow(merges, piece)) << piece;
  }
}

TEST(BpeMergerTest, AppendsAndNeedsNoMerges) {
  const BpeMerger merger({}, identity());
  BpeMerger::Scratch scratch;
  Ids ids{7};
  merger.encode("ab", scratch, ids);
  merger.encode("", scratch, ids);
  EXPECT_EQ(ids, (Ids{7, 'a', 'b'}));
}

// Quadratic time would take hours here.
TEST(BpeMergerTest, ALongPieceIsMergedInReasonableTime) {
  const std::vector<BpeMerge> merges{{'a', 'a', 256}, {256, 256, 257}, {257, 257, 258}};
  const BpeMerger merger(merges, identity());
  BpeMerger::Scratch scratch;
  Ids ids;
  merger.encode(std::string(2000003, 'a'), scratch, ids);
  EXPECT_EQ(ids.size(), 250000U + 2);
}

}  // namespace
}  // namespace hydra::detail
