#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "data/bpe_definition.h"

namespace hydra::detail {

/// A list of merges, and the way from a piece of text to its tokens by them.
///
/// Thread safety: immutable; callers bring their own Scratch.
class BpeMerger {
 public:
  BpeMerger(std::span<const BpeMerge> merges, const std::array<std::int32_t, 256>& byte_tokens);

  struct Symbol {
    std::int32_t token;
    std::uint32_t previous;
    std::uint32_t next;
    std::uint32_t rank;  ///< of the merge with `next`, or kNone
  };
  /// Memory that is used again from piece to piece.
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> heap;
  };

  /// Appends the tokens of a piece of text. Its cost is O(n log n) in the piece's bytes.
  /// Errors: DataError when the piece has 2^32 - 1 bytes or more.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& tokens) const;

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Slot {
    std::uint64_t pair;
    std::uint32_t rank = kNone;
  };

  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const;
  void begin(std::string_view piece, Scratch& scratch) const;
  void rank_pair(std::uint32_t left, Scratch& scratch) const;
  void merge(std::uint32_t left, Scratch& scratch) const;

  std::vector<Slot> slots_;  ///< open addressing, at most half full
  unsigned shift_ = 0;
  std::vector<std::int32_t> results_;  ///< token by rank
  std::array<std::int32_t, 256> byte_tokens_;
};

}  // namespace hydra::detail
