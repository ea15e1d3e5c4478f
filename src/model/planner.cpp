#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "hydra/core/error.h"
#include "hydra/model/plan.h"
#include "model/shard_costs.h"

namespace hydra {
namespace {

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

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
    if (ShardCosts::required(shard) > input_.device_budget) return;
    shards_[at(first, end)] = shard;
    Nanoseconds time = shard.forward + shard.backward;
    if (first == 0) time += costs_.exposed_at_border(shard);
    const std::int64_t own = time.count();
    const std::int64_t peak = ShardCosts::required(shard).count();
    if (end == layers_) {
      best_[at(first, end)] = {own, 1, peak};
      return;
    }
    for (std::int64_t next = end + 1; next <= layers_; ++next) {
      const Worth& rest = best_[at(end, next)];
      if (rest == kImpossible) continue;
      const Worth worth{
          own + std::get<0>(rest) + costs_.exposed(shard, *shards_[at(end, next)]).count(),
          1 + std::get<1>(rest), std::max(peak, std::get<2>(rest))};
      if (worth < best_[at(first, end)]) {
        best_[at(first, end)] = worth;
        next_end_[at(first, end)] = next;
      }
    }
  }

  const PlanInput& input_;
  const ShardCosts& costs_;
  const std::int64_t layers_;
  std::vector<std::optional<ShardPlan>> shards_;
  std::vector<Worth> best_;
  std::vector<std::int64_t> next_end_;
};

std::string needs_of(const ShardPlan& shard, const ShardCosts& costs) {
  const Bytes needed = ShardCosts::required(shard);
  const Bytes parts = costs.held_parts(shard) + costs.rounded(shard.buffers);
  const Bytes gradients =
      shard.backward_required > shard.forward_required ? shard.gradients : Bytes(0);
  return " needs " + to_string(needed) + " (" + to_string(parts) + " parameters, " +
         to_string(gradients) + " gradients, " + to_string(needed - parts - gradients) +
         " activations and workspace), the device budget is ";
}

/// Of shards [borders[i], borders[i + 1]), the one that needs most, when that is over the budget.
std::optional<ShardPlan> worst_over_budget(const PlanInput& input, const ShardCosts& costs,
                                           const std::vector<std::int64_t>& borders) {
  std::optional<ShardPlan> worst;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    const ShardPlan shard = costs.shard(borders[i], borders[i + 1]);
    if (ShardCosts::required(shard) <= input.device_budget) continue;
    if (!worst || ShardCosts::required(shard) > ShardCosts::required(*worst)) worst = shard;
  }
  return worst;
}

[[noreturn]] void refuse(const PlanInput& input, const ShardCosts& costs) {
  const auto name = [&](std::int64_t l) { return "\"" + input.layers[index_of(l)].name + "\""; };
  std::vector<std::int64_t> every_layer;
  for (std::int64_t l = 0; l <= costs.layers(); ++l) every_layer.push_back(l);
  if (const auto alone = worst_over_budget(input, costs, every_layer)) {
    throw DoesNotFit("layer " + name(alone->first_layer) + needs_of(*alone, costs) +
                     to_string(input.device_budget) +
                     ": raise the device's memory, lower the micro-batch size, or split the layer");
  }
  std::vector<std::int64_t> by_hand = input.forced_cuts;
  by_hand.insert(by_hand.begin(), 0);
  by_hand.push_back(costs.layers());
  std::sort(by_hand.begin(), by_hand.end());
  if (const auto shard = worst_over_budget(input, costs, by_hand)) {
    throw DoesNotFit("the shard " + name(shard->first_layer) + " .. " + name(shard->end_layer - 1) +
                     ", cut by hand," + needs_of(*shard, costs) + to_string(input.device_budget) +
                     ": cut more finely or not by hand, or raise the device's memory");
  }
  throw DoesNotFit("a shard between the cuts made by hand has more layers than the limit of " +
                   std::to_string(input.shard_limit.value_or(0)) +
                   ": cut more finely or raise the limit");
}

/// The desired bytes: each unit with the next one's parts and the previous one's gradient.
Bytes desired_bytes(const std::vector<ShardPlan>& shards, const ShardCosts& costs) {
  Bytes desired;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const bool last = s + 1 == shards.size();
    if (!last) {
      desired = std::max(desired, shards[s].forward_required + costs.held_parts(shards[s + 1]));
    }
    if (!costs.has_backward(shards[s].end_layer)) continue;
    const bool loads_next = s > 0 && costs.has_backward(shards[s - 1].end_layer);
    desired = std::max(desired, shards[s].backward_required +
                                    (loads_next ? costs.held_parts(shards[s - 1]) : Bytes(0)) +
                                    (last ? Bytes(0) : shards[s + 1].gradients));
  }
  return desired;
}

Bytes whole_state_bytes(const ShardPlan& whole, const ShardCosts& costs) {
  return whole.backward_required + costs.moments(whole);
}

bool may_be_whole(const PlanInput& input, const ShardCosts& costs) {
  return input.may_stay_on_device && input.forced_cuts.empty() &&
         input.shard_limit.value_or(costs.layers()) >= costs.layers();
}

void predict_times(const ShardCosts& costs, Plan& plan) {
  plan.predicted_step = costs.update();
  for (std::size_t s = 0; s < plan.shards.size(); ++s) {
    const ShardPlan& shard = plan.shards[s];
    plan.predicted_step += shard.forward + shard.backward;
    if (s + 1 < plan.shards.size()) {
      plan.predicted_step += costs.exposed(shard, plan.shards[s + 1]);
    }
    plan.recomputation += costs.recomputation(shard);
  }
  if (!plan.fits_device) plan.predicted_step += costs.exposed_at_border(plan.shards.front());
}

void validate(const PlanInput& input) {
  if (input.layers.empty()) throw InvalidArgument("a plan needs at least one layer");
  if (input.micro_batches < 1) throw InvalidArgument("a plan needs at least one micro-batch");
  if (input.device_budget <= Bytes(0)) throw InvalidArgument("a plan needs a device budget");
  const auto layers = static_cast<std::int64_t>(input.layers.size());
  for (const std::int64_t cut : input.forced_cuts) {
    if (cut > 0 && cut < layers) continue;
    throw InvalidArgument("a cut before layer " + std::to_string(cut) + " of " +
                          std::to_string(layers) + ": cuts lie between layers");
  }
  const auto ties = static_cast<std::int64_t>(input.ties.size());
  for (const LayerMeasure& layer : input.layers) {
    for (const std::int64_t tie : layer.ties) {
      if (tie >= 0 && tie < ties) continue;
      throw InvalidArgument("layer \"" + layer.name + "\" uses tie " + std::to_string(tie) +
                            " of " + std::to_string(ties));
    }
  }
}

}  // namespace

Plan make_plan(const PlanInput& input) {
  validate(input);
  const ShardCosts costs(input);
  Plan plan;
  plan.micro_batches = input.micro_batches;
  plan.device_budget = input.device_budget;
  const ShardPlan whole = costs.shard(0, costs.layers());
  plan.resident_bytes = whole_state_bytes(whole, costs);
  plan.fits_device = may_be_whole(input, costs) && plan.resident_bytes <= input.device_budget;
  if (plan.fits_device) {
    plan.shards = {whole};
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
      plan.predicted_peak = std::max(plan.predicted_peak, ShardCosts::required(shard));
    }
    plan.desired = desired_bytes(plan.shards, costs);
  }
  predict_times(costs, plan);
  return plan;
}

}  // namespace hydra
