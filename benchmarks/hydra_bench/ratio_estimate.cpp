#include "ratio_estimate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "hydra/core/check.h"

namespace bench {

RatioEstimate estimate_ratio(std::vector<double> ratios) {
  HYDRA_CHECK(!ratios.empty(), "no pairs to estimate a ratio from");
  std::sort(ratios.begin(), ratios.end());
  const std::size_t n = ratios.size();
  RatioEstimate estimate;
  estimate.median = (ratios[(n - 1) / 2] + ratios[n / 2]) / 2;
  // The median lies below the (k+1)-th smallest value when at most k of n fair coins fall heads.
  double probability = std::pow(0.5, static_cast<double>(n));
  double tail = probability;
  std::size_t k = 0;
  for (std::size_t next = 1; next < n; ++next) {
    probability *= static_cast<double>(n - next + 1) / static_cast<double>(next);
    if (2 * (tail + probability) > 0.05) break;
    tail += probability;
    k = next;
  }
  estimate.low = ratios[k];
  estimate.high = ratios[n - 1 - k];
  estimate.confidence = std::max(0.0, 1 - 2 * tail);
  return estimate;
}

}  // namespace bench
