#include <array>

#include "hydra/optim/optimizer.h"
#include "optim/kernels.h"

namespace hydra {
namespace {

constexpr std::int64_t kLanes = 16;

// Element i goes to lane i mod 16, whatever the instruction set: the order of summation is fixed.
HYDRA_VECTORISED void lane_sums(const float* __restrict values, std::int64_t blocks,
                                double* __restrict lanes) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[b * kLanes + lane];
      lanes[lane] += value * value;
    }
  }
}

HYDRA_VECTORISED void add_pass(float* __restrict target, const float* __restrict source,
                               std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) target[i] += source[i];
}

}  // namespace

double square_sum(const float* values, std::int64_t elements) noexcept {
  std::array<double, kLanes> lanes{};
  const std::int64_t blocks = elements / kLanes;
  lane_sums(values, blocks, lanes.data());
  for (std::int64_t i = blocks * kLanes; i < elements; ++i) {
    const double value = values[i];
    lanes[static_cast<std::size_t>(i % kLanes)] += value * value;
  }
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

void add_into(float* target, const float* source, std::int64_t elements) noexcept {
  add_pass(target, source, elements);
}

float clip_factor(double norm, double max_norm) noexcept {
  const double factor = max_norm / (norm + 1e-6);
  return static_cast<float>(factor > 1.0 ? 1.0 : factor);
}

}  // namespace hydra
