#pragma once

#include <cstdint>

namespace hydra::detail {

/// A dropout mask as a pure function of (seed, stream, position): nothing is stored, and any thread
/// may compute any part of it, again and again.
///
/// A stream has at most 2^32 positions; streams of one seed are independent.
class DropoutMask {
 public:
  /// Positions of one stream that `apply` to a whole tensor uses.
  static constexpr std::int64_t kStreamElements = 4096;

  /// Requires 0 <= probability < 1.
  DropoutMask(std::uint64_t seed, double probability) noexcept;

  /// Writes input * mask / (1 - probability) for positions 0 .. elements-1 of `stream`; `output`
  /// may be `input`.
  void apply_stream(float* output, const float* input, std::int64_t elements,
                    std::uint64_t stream) const noexcept;

  /// The same for elements first .. end-1 of a tensor, where stream i covers the i-th
  /// kStreamElements elements. `first` is a multiple of kStreamElements.
  void apply(float* output, const float* input, std::int64_t first,
             std::int64_t end) const noexcept;

 private:
  std::uint64_t seed_;
  std::uint32_t drop_below_;
  float scale_;
};

}  // namespace hydra::detail
