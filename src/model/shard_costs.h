#pragma once

#include <algorithm>
#include <cstdint>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"
#include "hydra/model/plan.h"

namespace hydra {

/// The needs and times of every shard that cuts could make: the planner's arithmetic.
///
/// Keeping a graph from forward to backward is offered for the last shard alone. For any other it
/// would pin the graphs of all micro-batches beside everything that follows, while merging the
/// shard into the last one keeps the graph of a single micro-batch and saves the same
/// recomputation: so "keep or recompute" is the choice of how many layers the last shard takes.
///
/// Thread safety: immutable. Lifetime: borrows the input.
class ShardCosts {
 public:
  explicit ShardCosts(const PlanInput& input);

  std::int64_t layers() const { return static_cast<std::int64_t>(input_.layers.size()); }
  bool is_tail(std::int64_t end) const { return end == layers(); }
  /// False for a shard in front of every trainable layer: the backward pass ends before it.
  bool has_backward(std::int64_t end) const { return is_tail(end) || end > first_trained_; }

  ShardPlan shard(std::int64_t first, std::int64_t end) const;
  /// The larger of its units' needs.
  static Bytes required(const ShardPlan& shard) {
    return std::max(shard.forward_required, shard.backward_required);
  }

  /// The parts that a device holds for the shard, as it counts them.
  Bytes held_parts(const ShardPlan& shard) const;
  /// The optimizer's state of the shard, were it on the device.
  Bytes moments(const ShardPlan& shard) const;
  /// What the device counts for an allocation.
  Bytes rounded(Bytes bytes) const;

  /// The host's optimizer pass over everything that is trained.
  Nanoseconds update() const;
  /// The part of the shard's backward time that repeats its forward.
  Nanoseconds recomputation(const ShardPlan& shard) const;
  /// The part of two neighbours' transfers that computation does not hide. `after` is loaded while
  /// `before` runs forward; `before` is loaded while `after` runs backward, whose gradients leave
  /// while `before` runs backward.
  Nanoseconds exposed(const ShardPlan& before, const ShardPlan& after) const;
  /// What the first shard's transfers add at the step's border: its gradients leave, are applied,
  /// and the new parameters come back before anything of the job can compute.
  Nanoseconds exposed_at_border(const ShardPlan& first) const;

 private:
  const LayerMeasure& layer(std::int64_t index) const;
  const PlanInput::Tie& tie(std::int64_t index) const;
  bool is_trained(const LayerMeasure& layer) const;
  Nanoseconds transfer(Bytes bytes) const;
  Nanoseconds not_hidden(Bytes moved, Nanoseconds behind, Bytes beside) const;
  /// How many micro-batches' inputs are on the device at once: the next is on its way.
  std::int64_t staged() const { return input_.micro_batches > 1 ? 2 : 1; }
  /// A mini-batch's recorded forward and backward. What lies in front of every trainable layer
  /// records nothing and has no backward, whatever shard it is in.
  Nanoseconds again(std::int64_t layer) const;
  Nanoseconds backward(std::int64_t layer) const;
  Bytes base(const ShardPlan& shard) const;
  Bytes forward_required(const ShardPlan& shard) const;
  Bytes backward_required(const ShardPlan& shard) const;

  const PlanInput& input_;
  std::int64_t first_trained_ = 0;
};

}  // namespace hydra
