#include "data/bpe_merger.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "hydra/core/error.h"

namespace hydra::detail {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

/// Source: Knuth, The Art of Computer Programming 3, section 6.4 (multiplicative hashing).
std::size_t spread(std::uint64_t key, unsigned shift) {
  return static_cast<std::size_t>((key ^ key >> 29) * 0x9E3779B97F4A7C15ULL >> shift);
}

/// The heap gives the lowest rank first, and of one rank the leftmost symbol.
std::uint64_t candidate(std::uint32_t rank, std::uint32_t symbol) {
  return static_cast<std::uint64_t>(rank) << 32 | symbol;
}

std::uint64_t pop(std::vector<std::uint64_t>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  const std::uint64_t first = heap.back();
  heap.pop_back();
  return first;
}

}  // namespace

BpeMerger::BpeMerger(std::span<const BpeMerge> merges,
                     const std::array<std::int32_t, 256>& byte_tokens)
    : byte_tokens_(byte_tokens) {
  slots_.resize(std::bit_ceil(2 * merges.size() + 2));
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots_.size()));
  results_.reserve(merges.size());
  for (const BpeMerge& merge : merges) {
    const std::uint64_t key = pair_key(merge.left, merge.right);
    std::size_t at = spread(key, shift_);
    while (slots_[at].rank != kNone) at = (at + 1) % slots_.size();
    slots_[at] = {key, static_cast<std::uint32_t>(results_.size())};
    results_.push_back(merge.result);
  }
}

std::uint32_t BpeMerger::rank_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = spread(key, shift_);
  while (slots_[at].rank != kNone && slots_[at].pair != key) at = (at + 1) & (slots_.size() - 1);
  return slots_[at].rank;
}

void BpeMerger::rank_pair(std::uint32_t left, Scratch& scratch) const {
  Symbol& symbol = scratch.symbols[left];
  symbol.rank =
      symbol.next == kNone ? kNone : rank_of(symbol.token, scratch.symbols[symbol.next].token);
  if (symbol.rank == kNone) return;
  scratch.heap.push_back(candidate(symbol.rank, left));
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
}

void BpeMerger::begin(std::string_view piece, Scratch& scratch) const {
  const auto count = static_cast<std::uint32_t>(piece.size());
  scratch.heap.clear();
  scratch.symbols.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    scratch.symbols[i] = {byte_tokens_[static_cast<unsigned char>(piece[i])], i - 1, i + 1, kNone};
  }
  scratch.symbols.front().previous = kNone;
  scratch.symbols.back().next = kNone;
  for (std::uint32_t i = 0; i < count; ++i) rank_pair(i, scratch);
}

void BpeMerger::merge(std::uint32_t left, Scratch& scratch) const {
  Symbol& symbol = scratch.symbols[left];
  Symbol& gone = scratch.symbols[symbol.next];
  symbol.token = results_[symbol.rank];
  symbol.next = gone.next;
  gone.rank = kNone;  // its candidates in the heap are stale from now on
  if (symbol.next != kNone) scratch.symbols[symbol.next].previous = left;
  rank_pair(left, scratch);
  if (symbol.previous != kNone) rank_pair(symbol.previous, scratch);
}

void BpeMerger::encode(std::string_view piece, Scratch& scratch,
                       std::vector<std::int32_t>& tokens) const {
  if (piece.empty()) return;
  if (piece.size() >= kNone) {
    throw DataError("a text has " + std::to_string(piece.size()) +
                    " bytes without a place to cut it, fewer than 2^32 - 1 can be encoded");
  }
  begin(piece, scratch);
  while (!scratch.heap.empty()) {
    const std::uint64_t best = pop(scratch.heap);
    const auto left = static_cast<std::uint32_t>(best);
    // A symbol whose pair has changed since has been ranked, and pushed, again.
    if (scratch.symbols[left].rank == best >> 32) merge(left, scratch);
  }
  for (std::uint32_t i = 0; i != kNone; i = scratch.symbols[i].next) {
    tokens.push_back(scratch.symbols[i].token);
  }
}

}  // namespace hydra::detail
