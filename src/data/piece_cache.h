#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hydra/core/mutex.h"

namespace hydra::detail {

/// Remembers the tokens of short pieces of text. Each piece has one place, where a newer piece of
/// the same place replaces it: 2 MiB, whatever the text, and no bookkeeping.
///
/// Thread safety: confined to whoever has taken it from its pool.
class PieceCache {
 public:
  static constexpr std::size_t kLargestPiece = 26;
  static constexpr std::size_t kMostTokens = 9;

  struct Entry {
    std::uint8_t length = 0;  ///< of the piece; 0 is an empty place
    std::uint8_t count = 0;   ///< of its tokens
    std::array<char, kLargestPiece> piece;
    std::array<std::int32_t, kMostTokens> tokens;

    bool holds(std::string_view text) const {
      return text.size() == length && std::memcmp(piece.data(), text.data(), length) == 0;
    }
    void remember(std::string_view text, std::span<const std::int32_t> ids) {
      if (ids.size() > kMostTokens) return;
      length = static_cast<std::uint8_t>(text.size());
      count = static_cast<std::uint8_t>(ids.size());
      std::memcpy(piece.data(), text.data(), text.size());
      std::memcpy(tokens.data(), ids.data(), ids.size_bytes());
    }
  };
  static_assert(sizeof(Entry) == 64, "an entry fills a cache line");

  /// Returns the place of a piece of 1 to kLargestPiece bytes.
  Entry& place_of(std::string_view piece) { return entries_[hash(piece) % entries_.size()]; }

 private:
  static constexpr std::size_t kPlaces = std::size_t{1} << 15;

  static std::uint64_t hash(std::string_view piece) {
    std::uint64_t hash = piece.size();
    for (std::size_t at = 0; at < piece.size(); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, piece.data() + at, std::min<std::size_t>(8, piece.size() - at));
      hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 32;
    }
    return hash;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kPlaces);
};

/// Lends caches to threads: as many exist as were ever lent at once.
/// Thread safety: thread-safe.
class PieceCachePool {
 public:
  std::unique_ptr<PieceCache> take() {
    {
      const MutexLock lock(mutex_);
      if (!idle_.empty()) {
        auto cache = std::move(idle_.back());
        idle_.pop_back();
        return cache;
      }
    }
    return std::make_unique<PieceCache>();
  }

  void give_back(std::unique_ptr<PieceCache> cache) {
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(cache));
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<PieceCache>> idle_ HYDRA_GUARDED_BY(mutex_);
};

}  // namespace hydra::detail
