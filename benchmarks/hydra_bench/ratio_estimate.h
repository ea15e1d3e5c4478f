#pragma once

#include <vector>

namespace bench {

/// The median of paired ratios and an interval for it.
struct RatioEstimate {
  double median = 0;
  double low = 0;
  double high = 0;
  double confidence = 0;  ///< that the interval holds the true median; below 0.95 with few pairs
};

/// Estimates the median from one ratio per pair (at least one): the narrowest interval between two
/// order statistics, equally far from the ends, that holds the median with 95 % confidence. No
/// distribution is assumed. Below six pairs it is the whole range, with what that is worth.
/// Source: Conover, Practical Nonparametric Statistics, 1999, section 3.2.
RatioEstimate estimate_ratio(std::vector<double> ratios);

}  // namespace bench
