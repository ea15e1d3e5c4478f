#pragma once

#include <cstdint>
#include <initializer_list>

namespace hydra {

/// A small generator for seeds, shuffles and tests.
/// Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014.
/// Thread safety: thread-compatible.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();
  /// Returns a number below `bound` (positive), each equally likely.
  std::uint64_t below(std::uint64_t bound);

 private:
  std::uint64_t state_;
};

/// Returns a seed that is a function of a seed and some numbers, well mixed.
std::uint64_t mix_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> numbers);

}  // namespace hydra
