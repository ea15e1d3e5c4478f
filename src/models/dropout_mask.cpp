#include "dropout_mask.h"

#include <algorithm>
#include <bit>

namespace hydra::detail {
namespace {

// The finaliser of splitmix64 (Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators,
// 2014): turns (seed, stream) into a key.
std::uint64_t stream_key(std::uint64_t seed, std::uint64_t stream) noexcept {
  std::uint64_t z = seed + (stream + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// Two rounds of a 32-bit multiply-xorshift hash with half of the key before each: integer
// operations that vectorise, and therefore the same mask on every instruction set.
[[gnu::always_inline]] inline std::uint32_t hash(std::int64_t i, std::uint64_t key) noexcept {
  const auto low = static_cast<std::uint32_t>(key);
  const auto high = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t x = low + static_cast<std::uint32_t>(i) * 0x9E3779B9U;
  x = (x ^ (x >> 16)) * 0x21F0AAADU;
  x = (x ^ high ^ (x >> 15)) * 0xD35A2D97U;
  return x ^ (x >> 15);
}

[[gnu::always_inline]] inline void apply_key(float* output, const float* input,
                                             std::int64_t elements, std::uint64_t key,
                                             std::uint32_t drop_below, float scale) noexcept {
  for (std::int64_t i = 0; i < elements; ++i) {
    // An and with all ones or none, so that no branch depends on the mask; a dropped NaN becomes 0.
    const std::uint32_t keep = 0U - static_cast<std::uint32_t>(hash(i, key) >= drop_below);
    output[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(input[i] * scale) & keep);
  }
}

using ApplyKey = void (*)(float*, const float*, std::int64_t, std::uint64_t, std::uint32_t,
                          float) noexcept;

#if defined(__x86_64__)
[[gnu::target("avx2")]] void apply_key_avx2(float* output, const float* input,
                                            std::int64_t elements, std::uint64_t key,
                                            std::uint32_t drop_below, float scale) noexcept {
  apply_key(output, input, elements, key, drop_below, scale);
}
#endif

void apply_key_portable(float* output, const float* input, std::int64_t elements, std::uint64_t key,
                        std::uint32_t drop_below, float scale) noexcept {
  apply_key(output, input, elements, key, drop_below, scale);
}

ApplyKey best_apply_key() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return apply_key_avx2;
#endif
  return apply_key_portable;
}

}  // namespace

DropoutMask::DropoutMask(std::uint64_t seed, double probability) noexcept
    : seed_(seed),
      drop_below_(static_cast<std::uint32_t>(std::min(probability * 4294967296.0, 4294967295.0))),
      scale_(1.0 / (1.0 - probability)) {}

void DropoutMask::apply_stream(float* output, const float* input, std::int64_t elements,
                               std::uint64_t stream) const noexcept {
  static const ApplyKey apply = best_apply_key();
  apply(output, input, elements, stream_key(seed_, stream), drop_below_,
        static_cast<float>(scale_));
}

void DropoutMask::apply_stream(double* output, const double* input, std::int64_t elements,
                               std::uint64_t stream) const noexcept {
  const std::uint64_t key = stream_key(seed_, stream);
  for (std::int64_t i = 0; i < elements; ++i) {
    output[i] = hash(i, key) >= drop_below_ ? input[i] * scale_ : 0.0;
  }
}

}  // namespace hydra::detail
