#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"

namespace hydra {

/// What the pilot measured of one layer at the worst micro-batch. Bytes are as the device counts
/// them, rounding included.
struct LayerMeasure {
  std::string name;
  Bytes trainable;
  Bytes frozen;
  Bytes buffers;
  std::vector<std::int64_t> ties;  ///< tied parameters that it uses (index into PlanInput::ties)
  Bytes input;                     ///< all input tensors
  Bytes output;                    ///< all output tensors
  Bytes output_gradient;           ///< of the differentiable outputs
  Bytes graph;                     ///< held after a recorded forward, outputs included
  Bytes forward_peak;       ///< largest above the start in an unrecorded forward, outputs included
  Bytes recorded_peak;      ///< largest above the start in a recorded forward, outputs included
  Bytes backward_peak;      ///< largest above the start of its forward, in backward: graph, output
                            ///< gradient, temporaries and input gradient included
  Nanoseconds forward{0};   ///< unrecorded
  Nanoseconds recorded{0};  ///< recorded forward
  Nanoseconds backward{0};
};

/// What planning works from.
struct PlanInput {
  std::vector<LayerMeasure> layers;
  struct Tie {
    Bytes bytes;
    bool frozen = false;
  };
  std::vector<Tie> ties;
  std::vector<std::int64_t> forced_cuts;  ///< layer indices; when not empty, exactly these are used
  std::int64_t micro_batches = 1;
  Bytes side_inputs;  ///< of one micro-batch, on the device for every unit
  int optimizer_state_slots = 2;
  Bytes device_budget;                    ///< of the smallest device that the job may run on
  double link_bytes_per_second = 0;       ///< 0: as fast as memory
  double update_bytes_per_second = 10e9;  ///< of the host's optimizer pass
  /// What a device counts for an allocation; identity when empty.
  std::function<Bytes(Bytes)> allocation_size;
  /// False where gradients are wanted in host memory: the state then never stays on the device.
  bool may_stay_on_device = true;
  std::optional<std::int64_t> shard_limit;  ///< at most this many layers in a shard, for tests
};

/// One shard of a plan.
struct ShardPlan {
  std::int64_t first_layer = 0;
  std::int64_t end_layer = 0;
  bool recompute =
      true;  ///< false for the last shard, whose graph is kept, and where no backward pass comes
  Bytes trainable;
  Bytes frozen;
  Bytes buffers;
  std::vector<std::int64_t> ties;
  Bytes gradients;  ///< accumulators, one per use of a tied parameter included
  Bytes input;      ///< one micro-batch
  Bytes output;     ///< one micro-batch
  /// Device bytes that the forward unit needs beside nothing else (zero for the last shard).
  Bytes forward_required;
  /// Device bytes that the backward unit (for the last shard: forward, loss and backward) needs.
  Bytes backward_required;
  Nanoseconds forward{0};   ///< predicted, whole mini-batch
  Nanoseconds backward{0};  ///< predicted, whole mini-batch, recomputation included

  Bytes parts() const { return trainable + frozen + buffers; }
};

/// The immutable decision how a job is cut and what it will need.
struct Plan {
  std::vector<ShardPlan> shards;
  std::int64_t micro_batches = 1;
  Bytes device_budget;
  Bytes predicted_peak;      ///< largest required bytes of any unit
  Bytes desired;             ///< with the next unit's prefetch and the previous unit's drain
  bool fits_device = false;  ///< one shard whose whole state can stay on the device
  Bytes resident_bytes;      ///< what that takes: state, gradients and workspace
  /// Host bytes from admission to end: parameters, moments, buffers twice, batches ahead (and
  /// gradients when deferred). This and the next are set where a job is prepared.
  Bytes host_state;
  Bytes host_step;  ///< of a step in flight: boundary activations, their gradients, gradients
  /// Bytes on drives: parameters and moments, which are not part of `host_state` then; 0 without a
  /// storage tier.
  Bytes storage;
  Bytes host_cache;  ///< of those, what has to be in host memory at once: the least of a cache
  Nanoseconds predicted_step{0};
  Nanoseconds recomputation{0};  ///< part of predicted_step

  /// Returns a table for people: shards, bytes per tier, peak and step time, and why.
  std::string to_text(const std::vector<std::string>& layer_names) const;
};

/// Chooses the cuts by dynamic programming: least predicted step time (recomputation and transfers
/// that compute cannot hide) among all cuts whose required bytes fit the device budget.
/// Errors: DoesNotFit names the layer, its needs and the budget.
Plan make_plan(const PlanInput& input);

}  // namespace hydra
