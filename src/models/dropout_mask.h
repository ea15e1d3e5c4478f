#pragma once

#include <algorithm>
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
  void apply_stream(double* output, const double* input, std::int64_t elements,
                    std::uint64_t stream) const noexcept;

  /// The same for elements first .. end-1 of a tensor, where stream i covers the i-th
  /// kStreamElements elements. `first` is a multiple of kStreamElements.
  template <typename Number>
  void apply(Number* output, const Number* input, std::int64_t first,
             std::int64_t end) const noexcept {
    for (std::int64_t begin = first; begin < end; begin += kStreamElements) {
      apply_stream(output + begin, input + begin, std::min(kStreamElements, end - begin),
                   static_cast<std::uint64_t>(begin / kStreamElements));
    }
  }

 private:
  std::uint64_t seed_;
  std::uint32_t drop_below_;
  double scale_;
};

}  // namespace hydra::detail
