#include "hydra/core/random.h"

namespace hydra {

std::uint64_t SplitMix64::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

std::uint64_t SplitMix64::below(std::uint64_t bound) {
  const std::uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound: the uneven rest
  std::uint64_t value = next();
  while (value < threshold) value = next();
  return value % bound;
}

std::uint64_t mix_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t mixed = SplitMix64(seed).next();
  for (const std::uint64_t number : numbers)
    mixed = SplitMix64(mixed ^ SplitMix64(number).next()).next();
  return mixed;
}

}  // namespace hydra
