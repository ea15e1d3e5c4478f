#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/model/plan.h"

namespace hydra {
namespace {

// What copies reach when the link is memory itself; only its order of magnitude matters to the
// plan.
constexpr double kMemoryBytesPerSecond = 8e9;

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

/// The needs and times of every shard that the cuts could make.
///
/// Keeping a graph from forward to backward is offered for the last shard alone. For any other it
/// would pin the graphs of all micro-batches beside everything that follows, while merging the
/// shard into the last one keeps the graph of a single micro-batch and saves the same
/// recomputation: so "keep or recompute" is the choice of how many layers the last shard takes.
class ShardCosts {
 public:
  explicit ShardCosts(const PlanInput& input) : input_(input) {}

  std::int64_t layers() const { return static_cast<std::int64_t>(input_.layers.size()); }
  bool is_tail(std::int64_t end) const { return end == layers(); }

  ShardPlan shard(std::int64_t first, std::int64_t end) const {
    ShardPlan plan;
    plan.first_layer = first;
    plan.end_layer = end;
    plan.recompute = !is_tail(end);
    std::set<std::int64_t> ties;
    Bytes tied_gradients;
    for (std::int64_t l = first; l < end; ++l) {
      const LayerMeasure& layer = input_.layers[index_of(l)];
      plan.trainable += layer.trainable;
      plan.frozen += layer.frozen;
      plan.buffers += layer.buffers;
      for (const std::int64_t tie : layer.ties) {
        ties.insert(tie);
        if (!input_.ties[index_of(tie)].frozen)
          tied_gradients += rounded(input_.ties[index_of(tie)].bytes);
      }
      plan.forward += layer.forward * input_.micro_batches;
      plan.backward += (layer.recorded + layer.backward) * input_.micro_batches;
    }
    plan.ties.assign(ties.begin(), ties.end());
    plan.gradients = rounded(plan.trainable) + tied_gradients;
    plan.input = input_.layers[index_of(first)].input;
    plan.output = input_.layers[index_of(end - 1)].output;
    if (is_tail(end)) plan.forward = Nanoseconds(0);
    plan.forward_required = is_tail(end) ? Bytes(0) : forward_required(plan);
    plan.backward_required = backward_required(plan);
    return plan;
  }

  /// The parts that a device holds for the shard, as it counts them.
  Bytes held_parts(const ShardPlan& shard) const {
    Bytes total = rounded(shard.trainable) + rounded(shard.frozen);
    for (const std::int64_t tie : shard.ties) total += rounded(input_.ties[index_of(tie)].bytes);
    return total;
  }

  /// The optimizer's state of the shard, were it on the device.
  Bytes moments(const ShardPlan& shard) const {
    Bytes total = rounded(shard.trainable * input_.optimizer_state_slots);
    for (const std::int64_t tie : shard.ties) {
      const auto& tied = input_.ties[index_of(tie)];
      if (!tied.frozen) total += rounded(tied.bytes * input_.optimizer_state_slots);
    }
    return total;
  }

  Nanoseconds transfer(Bytes bytes) const {
    const double rate =
        input_.link_bytes_per_second > 0 ? input_.link_bytes_per_second : kMemoryBytesPerSecond;
    return Nanoseconds(static_cast<std::int64_t>(1e9 * static_cast<double>(bytes.count()) / rate));
  }

  Bytes rounded(Bytes bytes) const {
    if (bytes <= Bytes(0)) return Bytes(0);
    return input_.allocation_size ? input_.allocation_size(bytes) : bytes;
  }

  /// How many micro-batches' inputs are on the device at once: the next is on its way.
  std::int64_t staged() const { return input_.micro_batches > 1 ? 2 : 1; }

 private:
  Bytes base(const ShardPlan& shard) const {
    return held_parts(shard) + rounded(shard.buffers) + input_.side_inputs * staged();
  }

  Bytes forward_required(const ShardPlan& shard) const {
    Bytes deepest;
    for (std::int64_t l = shard.first_layer; l < shard.end_layer; ++l) {
      const Bytes flowing =
          l > shard.first_layer ? input_.layers[index_of(l - 1)].output : Bytes(0);
      deepest = std::max(deepest, flowing + input_.layers[index_of(l)].forward_peak);
    }
    const Bytes draining = input_.micro_batches > 1 ? shard.output : Bytes(0);
    return base(shard) + shard.input * staged() + draining + deepest;
  }

  Bytes backward_required(const ShardPlan& shard) const {
    const LayerMeasure& last = input_.layers[index_of(shard.end_layer - 1)];
    const bool tail = is_tail(shard.end_layer);
    Bytes graphs;
    Bytes deepest;
    for (std::int64_t l = shard.first_layer; l < shard.end_layer; ++l) {
      const LayerMeasure& layer = input_.layers[index_of(l)];
      // The measured backward peak holds the layer's output gradient; of the shard's last layer it
      // has come from the host and is counted with the inputs.
      const bool counted = l + 1 == shard.end_layer && !tail;
      const Bytes backward = layer.backward_peak - (counted ? layer.output_gradient : Bytes(0));
      deepest = std::max({deepest, graphs + layer.recorded_peak, graphs + backward});
      graphs += layer.graph;
    }
    const Bytes output_gradients = tail ? Bytes(0) : last.output_gradient * staged();
    const Bytes draining = input_.micro_batches > 1 && shard.first_layer > 0
                               ? input_.layers[index_of(shard.first_layer - 1)].output_gradient
                               : Bytes(0);
    return base(shard) + shard.gradients + shard.input * staged() + output_gradients + draining +
           deepest;
  }

  const PlanInput& input_;
};

/// A partial plan's worth: time first, then few shards, then a low peak.
using Worth = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
constexpr Worth kImpossible{std::numeric_limits<std::int64_t>::max(), 0, 0};

/// Finds the best cuts. `best(first, end)` is the worth of layers [first, L) when the first shard
/// is [first, end): the transfers of a shard hide behind the computation of its neighbour, so the
/// state holds one whole shard.
class CutSearch {
 public:
  CutSearch(const PlanInput& input, const ShardCosts& costs)
      : input_(input), costs_(costs), layers_(costs.layers()) {
    shards_.resize(index_of(layers_ * (layers_ + 1)));
    best_.assign(shards_.size(), kImpossible);
    next_end_.assign(shards_.size(), -1);
  }

  /// Returns the ends of the shards, or nothing when no cuts fit.
  std::vector<std::int64_t> run() {
    for (std::int64_t first = layers_ - 1; first >= 0; --first) {
      for (std::int64_t end = first + 1; end <= layers_; ++end) solve(first, end);
    }
    std::int64_t end = -1;
    Worth best = kImpossible;
    for (std::int64_t e = 1; e <= layers_; ++e) {
      if (best_[at(0, e)] < best) {
        best = best_[at(0, e)];
        end = e;
      }
    }
    std::vector<std::int64_t> ends;
    for (std::int64_t first = 0; end != -1;) {
      ends.push_back(end);
      const std::int64_t next = next_end_[at(first, end)];
      first = end;
      end = first == layers_ ? -1 : next;
    }
    return ends;
  }

 private:
  std::size_t at(std::int64_t first, std::int64_t end) const {
    return index_of(first * (layers_ + 1) + end);
  }

  bool allowed(std::int64_t first, std::int64_t end) const {
    if (input_.shard_limit && end - first > *input_.shard_limit) return false;
    const auto& cuts = input_.forced_cuts;
    if (cuts.empty()) return true;
    const auto is_border = [&](std::int64_t l) {
      return l == 0 || l == layers_ || std::find(cuts.begin(), cuts.end(), l) != cuts.end();
    };
    if (!is_border(first) || !is_border(end)) return false;
    return std::none_of(cuts.begin(), cuts.end(),
                        [&](std::int64_t cut) { return cut > first && cut < end; });
  }

  void solve(std::int64_t first, std::int64_t end) {
    if (!allowed(first, end)) return;
    const ShardPlan shard = costs_.shard(first, end);
    if (std::max(shard.forward_required, shard.backward_required) > input_.device_budget) return;
    shards_[at(first, end)] = shard;
    const std::int64_t own = (shard.forward + shard.backward).count();
    const std::int64_t peak = std::max(shard.forward_required, shard.backward_required).count();
    if (end == layers_) {
      best_[at(first, end)] = {own, 1, peak};
      return;
    }
    for (std::int64_t next = end + 1; next <= layers_; ++next) {
      const Worth& rest = best_[at(end, next)];
      if (rest == kImpossible) continue;
      const Worth worth{own + std::get<0>(rest) + exposed(shard, *shards_[at(end, next)]).count(),
                        1 + std::get<1>(rest), std::max(peak, std::get<2>(rest))};
      if (worth < best_[at(first, end)]) {
        best_[at(first, end)] = worth;
        next_end_[at(first, end)] = next;
      }
    }
  }

  /// The part of two neighbours' transfers that computation does not hide: `after` is loaded while
  /// `before` runs forward, `before` while `after` runs backward.
  Nanoseconds exposed(const ShardPlan& before, const ShardPlan& after) const {
    return not_hidden(costs_.held_parts(after), before.forward, before.forward_required) +
           not_hidden(costs_.held_parts(before), after.backward, after.backward_required);
  }

  Nanoseconds not_hidden(Bytes parts, Nanoseconds behind, Bytes beside) const {
    const Nanoseconds transfer = costs_.transfer(parts);
    if (beside + parts > input_.device_budget) return transfer;
    return std::max(Nanoseconds(0), transfer - behind);
  }

  const PlanInput& input_;
  const ShardCosts& costs_;
  const std::int64_t layers_;
  std::vector<std::optional<ShardPlan>> shards_;
  std::vector<Worth> best_;
  std::vector<std::int64_t> next_end_;
};

[[noreturn]] void refuse(const PlanInput& input, const ShardCosts& costs) {
  std::string worst = "the cuts that were asked for leave a shard that";
  Bytes needed;
  Bytes parts;
  Bytes gradients;
  for (std::int64_t l = 0; l < costs.layers(); ++l) {
    const ShardPlan alone = costs.shard(l, l + 1);
    const Bytes bytes = std::max(alone.forward_required, alone.backward_required);
    if (bytes <= input.device_budget || bytes <= needed) continue;
    worst = "layer \"" + input.layers[index_of(l)].name + "\"";
    needed = bytes;
    parts = costs.held_parts(alone) + alone.buffers;
    gradients = alone.gradients;
  }
  if (needed == Bytes(0)) {
    throw DoesNotFit(worst + " does not fit the device budget of " +
                     to_string(input.device_budget) + ": cut more finely, or not by hand");
  }
  throw DoesNotFit(
      worst + " needs " + to_string(needed) + " (" + to_string(parts) + " parameters, " +
      to_string(gradients) + " gradients, " + to_string(needed - parts - gradients) +
      " activations and workspace), the device budget is " + to_string(input.device_budget) +
      ": raise the device's memory, lower the micro-batch size, or split the layer");
}

/// The desired bytes: each unit with the next one's parts and the previous one's gradient.
Bytes desired_bytes(const std::vector<ShardPlan>& shards, const ShardCosts& costs) {
  Bytes desired;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    if (s + 1 < shards.size()) {
      desired = std::max(desired, shards[s].forward_required + costs.held_parts(shards[s + 1]));
    }
    Bytes backward = shards[s].backward_required;
    if (s > 0) backward += costs.held_parts(shards[s - 1]);
    if (s + 1 < shards.size()) backward += shards[s + 1].gradients;
    desired = std::max(desired, backward);
  }
  return desired;
}

/// One shard whose whole state stays on the device, when that fits.
std::optional<ShardPlan> whole_model(const PlanInput& input, const ShardCosts& costs) {
  if (!input.forced_cuts.empty()) return std::nullopt;
  if (input.shard_limit && *input.shard_limit < costs.layers()) return std::nullopt;
  ShardPlan shard = costs.shard(0, costs.layers());
  if (shard.backward_required + costs.moments(shard) > input.device_budget) return std::nullopt;
  return shard;
}

void validate(const PlanInput& input) {
  if (input.layers.empty()) throw InvalidArgument("a plan needs at least one layer");
  if (input.micro_batches < 1) throw InvalidArgument("a plan needs at least one micro-batch");
  if (input.device_budget <= Bytes(0)) throw InvalidArgument("a plan needs a device budget");
}

}  // namespace

Plan make_plan(const PlanInput& input) {
  validate(input);
  const ShardCosts costs(input);
  Plan plan;
  plan.micro_batches = input.micro_batches;
  plan.device_budget = input.device_budget;
  if (auto whole = whole_model(input, costs)) {
    plan.fits_device = true;
    plan.resident_bytes = whole->backward_required + costs.moments(*whole);
    plan.shards.push_back(std::move(*whole));
    plan.predicted_peak = plan.resident_bytes;
    plan.desired = plan.resident_bytes;
  } else {
    std::int64_t first = 0;
    for (const std::int64_t end : CutSearch(input, costs).run()) {
      plan.shards.push_back(costs.shard(first, end));
      first = end;
    }
    if (plan.shards.empty()) refuse(input, costs);
    for (const ShardPlan& shard : plan.shards) {
      plan.predicted_peak =
          std::max({plan.predicted_peak, shard.forward_required, shard.backward_required});
    }
    plan.desired = desired_bytes(plan.shards, costs);
  }
  for (const ShardPlan& shard : plan.shards) {
    plan.predicted_step += shard.forward + shard.backward;
    if (!shard.recompute) continue;
    for (std::int64_t l = shard.first_layer; l < shard.end_layer; ++l) {
      plan.recomputation += input.layers[index_of(l)].recorded * input.micro_batches;
    }
  }
  return plan;
}

}  // namespace hydra
