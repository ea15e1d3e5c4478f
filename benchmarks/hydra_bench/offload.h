#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/models/gpt2.h"
#include "ratio_estimate.h"
#include "window_meter.h"

namespace bench {

/// What `hydra_bench offload` compares: one GPT-2, trained by an ordinary LibTorch loop in memory
/// and by Hydra under a device budget that holds a part of it.
struct OffloadOptions {
  hydra::Gpt2Options model;
  std::int64_t batch_size = 4;
  std::int64_t context = 512;
  std::int64_t micro_batch_size = 1;        ///< Hydra's
  std::int64_t torch_micro_batch_size = 1;  ///< the plain loop's
  int threads = 0;                          ///< of Torch, for both; 0 takes all cores
  std::int64_t pairs = 9;
  std::int64_t steps = 2;  ///< measured per side and pair
  /// 0: the smaller of a quarter of the plain loop's peak and three quarters of parameters and
  /// gradients.
  hydra::Bytes device_memory;
  bool warm_pages = true;  ///< the plain loop takes its memory from warm pages, not from malloc
  std::string json;        ///< file for the report; empty: none
};

/// Seconds per step of both sides in one pair.
struct OffloadPair {
  double torch_seconds = 0;
  double hydra_seconds = 0;
  double recomputation_seconds = 0;  ///< part of hydra_seconds
};

struct OffloadReport {
  std::string machine;
  int threads = 0;
  hydra::Bytes parameters;
  hydra::Bytes plain_peak;
  hydra::Bytes device_budget;
  hydra::Bytes device_peak;
  hydra::Bytes predicted_peak;
  hydra::Bytes host_peak;     ///< of Hydra's host budget
  hydra::Bytes process_peak;  ///< most that the process held for Hydra, by the system's count
  std::int64_t shards = 0;
  std::int64_t recomputed_shards = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t measured_steps = 0;
  std::vector<OffloadPair> pairs;
  WindowFigures figures;             ///< over all measured steps
  double first_loss_difference = 0;  ///< of the two sides' first losses, relative

  /// Tokens per second of Hydra over those of the plain loop.
  RatioEstimate ratio() const;
  /// The same with the time of recomputation taken off Hydra's.
  RatioEstimate ratio_without_recomputation() const;
};

/// Runs the pairs, alternating which side goes first.
/// Errors: hydra::Error when the work cannot run, or was no offload at all: no shard was
/// recomputed, or none had left the device between its forward and its backward unit.
OffloadReport run_offload(const OffloadOptions& options);

std::string to_text(const OffloadReport& report);
std::string to_json(const OffloadReport& report);

}  // namespace bench
