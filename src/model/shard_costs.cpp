#include "model/shard_costs.h"

#include <set>

namespace hydra {
namespace {

// What copies reach when the link is memory itself; only its order of magnitude matters to the
// plan.
constexpr double kMemoryBytesPerSecond = 8e9;

Nanoseconds duration(Bytes bytes, double bytes_per_second) {
  return Nanoseconds(
      static_cast<std::int64_t>(1e9 * static_cast<double>(bytes.count()) / bytes_per_second));
}

}  // namespace

ShardCosts::ShardCosts(const PlanInput& input) : input_(input) {
  while (first_trained_ < layers() && !is_trained(layer(first_trained_))) ++first_trained_;
}

ShardPlan ShardCosts::shard(std::int64_t first, std::int64_t end) const {
  ShardPlan plan;
  plan.first_layer = first;
  plan.end_layer = end;
  plan.recompute = !is_tail(end) && has_backward(end);
  std::set<std::int64_t> ties;
  Bytes tied_gradients;
  for (std::int64_t l = first; l < end; ++l) {
    plan.trainable += layer(l).trainable;
    plan.frozen += layer(l).frozen;
    plan.buffers += layer(l).buffers;
    for (const std::int64_t t : layer(l).ties) {
      ties.insert(t);
      if (!tie(t).frozen) tied_gradients += rounded(tie(t).bytes);
    }
    if (!is_tail(end)) plan.forward += layer(l).forward * input_.micro_batches;
    if (has_backward(end)) plan.backward += again(l) + backward(l);
  }
  plan.ties.assign(ties.begin(), ties.end());
  plan.gradients = rounded(plan.trainable) + tied_gradients;
  plan.input = layer(first).input;
  plan.output = layer(end - 1).output;
  if (!is_tail(end)) plan.forward_required = forward_required(plan);
  if (has_backward(end)) plan.backward_required = backward_required(plan);
  return plan;
}

Bytes ShardCosts::held_parts(const ShardPlan& shard) const {
  Bytes total = rounded(shard.trainable) + rounded(shard.frozen);
  for (const std::int64_t t : shard.ties) total += rounded(tie(t).bytes);
  return total;
}

Bytes ShardCosts::moments(const ShardPlan& shard) const {
  Bytes total = rounded(shard.trainable * input_.optimizer_state_slots);
  for (const std::int64_t t : shard.ties) {
    if (!tie(t).frozen) total += rounded(tie(t).bytes * input_.optimizer_state_slots);
  }
  return total;
}

Bytes ShardCosts::rounded(Bytes bytes) const {
  if (bytes <= Bytes(0)) return Bytes(0);
  return input_.allocation_size ? input_.allocation_size(bytes) : bytes;
}

Nanoseconds ShardCosts::update() const {
  Bytes trainable;
  for (const LayerMeasure& layer : input_.layers) trainable += layer.trainable;
  for (const auto& tie : input_.ties) {
    if (!tie.frozen) trainable += tie.bytes;
  }
  // Parameters and moments are read and written, gradients read.
  return duration(trainable * (3 + 2 * input_.optimizer_state_slots),
                  input_.update_bytes_per_second);
}

Nanoseconds ShardCosts::recomputation(const ShardPlan& shard) const {
  Nanoseconds total{0};
  for (std::int64_t l = shard.first_layer; shard.recompute && l < shard.end_layer; ++l) {
    total += again(l);
  }
  return total;
}

Nanoseconds ShardCosts::exposed(const ShardPlan& before, const ShardPlan& after) const {
  const Nanoseconds loading =
      not_hidden(held_parts(after), before.forward, before.forward_required);
  if (!has_backward(before.end_layer)) return loading + transfer(after.gradients);
  return loading + not_hidden(held_parts(before), after.backward, after.backward_required) +
         not_hidden(after.gradients, before.backward, before.backward_required);
}

Nanoseconds ShardCosts::exposed_at_border(const ShardPlan& first) const {
  const Bytes leaving = has_backward(first.end_layer) ? first.gradients : Bytes(0);
  return transfer(held_parts(first)) + transfer(leaving);
}

const LayerMeasure& ShardCosts::layer(std::int64_t index) const {
  return input_.layers[static_cast<std::size_t>(index)];
}

const PlanInput::Tie& ShardCosts::tie(std::int64_t index) const {
  return input_.ties[static_cast<std::size_t>(index)];
}

bool ShardCosts::is_trained(const LayerMeasure& layer) const {
  return layer.trainable > Bytes(0) ||
         std::any_of(layer.ties.begin(), layer.ties.end(),
                     [this](std::int64_t t) { return !tie(t).frozen; });
}

Nanoseconds ShardCosts::transfer(Bytes bytes) const {
  return duration(bytes, input_.link_bytes_per_second > 0 ? input_.link_bytes_per_second
                                                          : kMemoryBytesPerSecond);
}

Nanoseconds ShardCosts::not_hidden(Bytes moved, Nanoseconds behind, Bytes beside) const {
  if (beside + moved > input_.device_budget) return transfer(moved);
  return std::max(Nanoseconds(0), transfer(moved) - behind);
}

Nanoseconds ShardCosts::again(std::int64_t l) const {
  return (l < first_trained_ ? layer(l).forward : layer(l).recorded) * input_.micro_batches;
}

Nanoseconds ShardCosts::backward(std::int64_t l) const {
  return l < first_trained_ ? Nanoseconds(0) : layer(l).backward * input_.micro_batches;
}

Bytes ShardCosts::base(const ShardPlan& shard) const {
  return held_parts(shard) + rounded(shard.buffers) + input_.side_inputs * staged();
}

Bytes ShardCosts::forward_required(const ShardPlan& shard) const {
  Bytes deepest;
  for (std::int64_t l = shard.first_layer; l < shard.end_layer; ++l) {
    const Bytes flowing = l > shard.first_layer ? layer(l - 1).output : Bytes(0);
    deepest = std::max(deepest, flowing + layer(l).forward_peak);
  }
  const Bytes draining = input_.micro_batches > 1 ? shard.output : Bytes(0);
  return base(shard) + shard.input * staged() + draining + deepest;
}

Bytes ShardCosts::backward_required(const ShardPlan& shard) const {
  const bool tail = is_tail(shard.end_layer);
  Bytes graphs;
  Bytes deepest;
  for (std::int64_t l = shard.first_layer; l < shard.end_layer; ++l) {
    // The measured backward peak holds the layer's output gradient; of the shard's last layer it
    // has come from the host and is counted with the inputs.
    const bool counted = l + 1 == shard.end_layer && !tail;
    const Bytes backward = layer(l).backward_peak - (counted ? layer(l).output_gradient : Bytes(0));
    deepest = std::max({deepest, graphs + layer(l).recorded_peak, graphs + backward});
    graphs += layer(l).graph;
  }
  const Bytes output_gradients =
      tail ? Bytes(0) : layer(shard.end_layer - 1).output_gradient * staged();
  const Bytes draining = input_.micro_batches > 1 && shard.first_layer > 0
                             ? layer(shard.first_layer - 1).output_gradient
                             : Bytes(0);
  return base(shard) + shard.gradients + shard.input * staged() + output_gradients + draining +
         deepest;
}

}  // namespace hydra
