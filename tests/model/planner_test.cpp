// The planner against an exhaustive search that is written down independently of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/model/plan.h"

namespace hydra {
namespace {

using ::testing::HasSubstr;
using namespace literals;  // NOLINT: byte literals

using Cuts = std::vector<std::int64_t>;  // ends of the shards, the last being the layer count

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

LayerMeasure measure(const std::string& name, Bytes parameters, Bytes activations,
                     std::int64_t milliseconds) {
  LayerMeasure layer;
  layer.name = name;
  layer.trainable = parameters;
  layer.input = layer.output = layer.output_gradient = activations;
  layer.graph = activations * 3;
  layer.forward_peak = activations * 2;
  layer.recorded_peak = activations * 4;
  layer.backward_peak = activations * 6;
  layer.forward = layer.recorded = std::chrono::milliseconds(milliseconds);
  layer.backward = std::chrono::milliseconds(2 * milliseconds);
  return layer;
}

PlanInput uniform(std::int64_t layers, Bytes budget) {
  PlanInput input;
  for (std::int64_t l = 0; l < layers; ++l) {
    input.layers.push_back(measure("layer" + std::to_string(l), 1_MiB, 64_KiB, 2));
  }
  input.micro_batches = 4;
  input.device_budget = budget;
  return input;
}

PlanInput random_input(std::uint64_t seed) {
  SplitMix64 random(seed);
  const auto bytes = [&](std::uint64_t bound) {
    return Bytes(static_cast<std::int64_t>(random.below(bound)));
  };
  const auto time = [&] { return Nanoseconds(static_cast<std::int64_t>(random.below(100000))); };
  PlanInput input;
  const std::uint64_t ties = random.below(3);
  for (std::uint64_t t = 0; t < ties; ++t) {
    input.ties.push_back({bytes(40000) + 4_B, random.below(4) == 0});
  }
  const auto layers = static_cast<std::int64_t>(1 + random.below(8));
  const std::uint64_t frozen_prefix = random.below(3);
  Bytes flowing = bytes(8000);
  for (std::int64_t l = 0; l < layers; ++l) {
    LayerMeasure layer;
    layer.name = "layer" + std::to_string(l);
    const bool frozen = static_cast<std::uint64_t>(l) < frozen_prefix;
    (frozen ? layer.frozen : layer.trainable) = bytes(60000);
    if (random.below(4) == 0) layer.buffers = bytes(2000);
    if (ties > 0 && random.below(3) == 0) {
      layer.ties.push_back(static_cast<std::int64_t>(random.below(ties)));
    }
    layer.input = flowing;
    layer.output = flowing = bytes(8000);
    layer.output_gradient = random.below(5) == 0 ? 0_B : layer.output;
    layer.graph = layer.output + bytes(20000);
    layer.forward_peak = layer.output + bytes(10000);
    layer.recorded_peak = layer.graph + bytes(10000);
    layer.backward_peak = layer.graph + layer.output_gradient + layer.input + bytes(10000);
    layer.forward = time();
    layer.recorded = layer.forward + time() / 8;
    layer.backward = time();
    input.layers.push_back(layer);
  }
  input.micro_batches = static_cast<std::int64_t>(1 + random.below(3));
  input.side_inputs = bytes(1000);
  input.optimizer_state_slots = static_cast<int>(random.below(3));
  input.device_budget = 50000_B + bytes(500000);
  if (random.below(2) == 0)
    input.link_bytes_per_second = 1e8 + static_cast<double>(random.below(3000000000));
  if (random.below(2) == 0) {
    input.allocation_size = [](Bytes size) { return size.rounded_up(64); };
  }
  if (random.below(4) == 0) input.shard_limit = static_cast<std::int64_t>(1 + random.below(4));
  if (random.below(4) == 0) {
    for (std::int64_t l = 1; l < layers; ++l) {
      if (random.below(3) == 0) input.forced_cuts.push_back(l);
    }
  }
  return input;
}

/// What a set of cuts needs and takes, written as the design says it.
class Reference {
 public:
  explicit Reference(const PlanInput& input) : input_(input) {}

  std::int64_t layers() const { return static_cast<std::int64_t>(input_.layers.size()); }

  std::optional<std::int64_t> time_of(const Cuts& ends) const {
    std::int64_t total = update();
    std::int64_t first = 0;
    for (std::size_t s = 0; s < ends.size(); ++s) {
      if (peak(first, ends[s]) > input_.device_budget) return std::nullopt;
      total += forward_time(first, ends[s]) + backward_time(first, ends[s]);
      if (s + 1 < ends.size()) {
        total += between(first, ends[s], ends[s + 1]);
      }
      if (s == 0) {
        total += transfer(parts(first, ends[s]));
        if (trains_before(ends[s])) total += transfer(gradients(first, ends[s]));
      }
      first = ends[s];
    }
    return total;
  }

  Bytes peak(std::int64_t first, std::int64_t end) const {
    return std::max(forward_required(first, end), backward_required(first, end));
  }

  bool allowed(const Cuts& ends) const {
    std::int64_t first = 0;
    for (const std::int64_t end : ends) {
      if (input_.shard_limit && end - first > *input_.shard_limit) return false;
      first = end;
    }
    if (input_.forced_cuts.empty()) return true;
    Cuts forced = input_.forced_cuts;
    forced.push_back(layers());
    return ends == forced;
  }

  Bytes forward_required(std::int64_t first, std::int64_t end) const {
    if (end == layers()) return 0_B;
    Bytes workspace;
    for (std::int64_t l = first; l < end; ++l) {
      workspace = std::max(workspace, (l > first ? at(l - 1).output : 0_B) + at(l).forward_peak);
    }
    const Bytes draining = staged() == 2 ? at(end - 1).output : 0_B;
    return resident(first, end) + at(first).input * staged() + draining + workspace;
  }

  Bytes backward_required(std::int64_t first, std::int64_t end) const {
    if (!reached(end)) return 0_B;
    const bool tail = end == layers();
    Bytes workspace;
    Bytes graphs;
    for (std::int64_t l = first; l < end; ++l) {
      Bytes backward = at(l).backward_peak;
      if (!tail && l == end - 1) backward -= at(l).output_gradient;
      workspace = std::max({workspace, graphs + at(l).recorded_peak, graphs + backward});
      graphs += at(l).graph;
    }
    Bytes needed = resident(first, end) + gradients(first, end) + at(first).input * staged();
    if (!tail) needed += at(end - 1).output_gradient * staged();
    if (staged() == 2 && first > 0) needed += at(first - 1).output_gradient;
    return needed + workspace;
  }

 private:
  const LayerMeasure& at(std::int64_t layer) const { return input_.layers[index_of(layer)]; }
  std::int64_t staged() const { return input_.micro_batches > 1 ? 2 : 1; }
  Bytes rounded(Bytes size) const {
    if (size == 0_B) return size;
    return input_.allocation_size ? input_.allocation_size(size) : size;
  }
  std::int64_t transfer(Bytes size) const {
    const double rate = input_.link_bytes_per_second > 0 ? input_.link_bytes_per_second : 8e9;
    return static_cast<std::int64_t>(1e9 * static_cast<double>(size.count()) / rate);
  }

  bool trains_before(std::int64_t end) const {
    for (std::int64_t l = 0; l < end; ++l) {
      if (at(l).trainable > 0_B) return true;
      for (const std::int64_t tie : at(l).ties) {
        if (!input_.ties[index_of(tie)].frozen) return true;
      }
    }
    return false;
  }
  bool reached(std::int64_t end) const { return end == layers() || trains_before(end); }

  Bytes parts(std::int64_t first, std::int64_t end) const {
    Bytes trainable;
    Bytes frozen;
    std::set<std::int64_t> ties;
    for (std::int64_t l = first; l < end; ++l) {
      trainable += at(l).trainable;
      frozen += at(l).frozen;
      ties.insert(at(l).ties.begin(), at(l).ties.end());
    }
    Bytes total = rounded(trainable) + rounded(frozen);
    for (const std::int64_t tie : ties) total += rounded(input_.ties[index_of(tie)].bytes);
    return total;
  }

  Bytes gradients(std::int64_t first, std::int64_t end) const {
    Bytes trainable;
    Bytes tied;
    for (std::int64_t l = first; l < end; ++l) {
      trainable += at(l).trainable;
      for (const std::int64_t tie : at(l).ties) {
        if (!input_.ties[index_of(tie)].frozen) tied += rounded(input_.ties[index_of(tie)].bytes);
      }
    }
    return rounded(trainable) + tied;
  }

  Bytes resident(std::int64_t first, std::int64_t end) const {
    Bytes buffers;
    for (std::int64_t l = first; l < end; ++l) buffers += at(l).buffers;
    return parts(first, end) + rounded(buffers) + input_.side_inputs * staged();
  }

  std::int64_t forward_time(std::int64_t first, std::int64_t end) const {
    std::int64_t total = 0;
    if (end == layers()) return total;
    for (std::int64_t l = first; l < end; ++l) total += at(l).forward.count();
    return total * input_.micro_batches;
  }
  std::int64_t backward_time(std::int64_t first, std::int64_t end) const {
    std::int64_t total = 0;
    if (!reached(end)) return total;
    for (std::int64_t l = first; l < end; ++l) {
      // In front of the first trainable layer nothing is recorded.
      total +=
          trains_before(l + 1) ? (at(l).recorded + at(l).backward).count() : at(l).forward.count();
    }
    return total * input_.micro_batches;
  }

  std::int64_t update() const {
    Bytes trainable;
    for (const LayerMeasure& layer : input_.layers) trainable += layer.trainable;
    for (const auto& tie : input_.ties) {
      if (!tie.frozen) trainable += tie.bytes;
    }
    const std::int64_t touched = trainable.count() * (3 + 2 * input_.optimizer_state_slots);
    return static_cast<std::int64_t>(1e9 * static_cast<double>(touched) /
                                     input_.update_bytes_per_second);
  }

  std::int64_t hidden_behind(Bytes moved, std::int64_t compute, Bytes beside) const {
    if (beside + moved > input_.device_budget) return transfer(moved);
    return std::max<std::int64_t>(0, transfer(moved) - compute);
  }

  std::int64_t between(std::int64_t first, std::int64_t border, std::int64_t end) const {
    std::int64_t total = hidden_behind(parts(border, end), forward_time(first, border),
                                       forward_required(first, border));
    if (!reached(border)) return total + transfer(gradients(border, end));
    total += hidden_behind(parts(first, border), backward_time(border, end),
                           backward_required(border, end));
    return total + hidden_behind(gradients(border, end), backward_time(first, border),
                                 backward_required(first, border));
  }

  const PlanInput& input_;
};

Cuts ends_of(const Plan& plan) {
  Cuts ends;
  for (const ShardPlan& shard : plan.shards) ends.push_back(shard.end_layer);
  return ends;
}

/// The best cuts among all: least time, then fewest shards, then lowest peak.
std::optional<std::tuple<std::int64_t, std::size_t, std::int64_t>> exhaustive(
    const Reference& reference) {
  std::optional<std::tuple<std::int64_t, std::size_t, std::int64_t>> best;
  const std::int64_t layers = reference.layers();
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << (layers - 1)); ++bits) {
    Cuts ends;
    for (std::int64_t l = 1; l < layers; ++l) {
      if ((bits >> (l - 1) & 1) != 0) ends.push_back(l);
    }
    ends.push_back(layers);
    if (!reference.allowed(ends)) continue;
    const auto time = reference.time_of(ends);
    if (!time) continue;
    Bytes peak;
    std::int64_t first = 0;
    for (const std::int64_t end : ends) {
      peak = std::max(peak, reference.peak(first, end));
      first = end;
    }
    const auto found = std::make_tuple(*time, ends.size(), peak.count());
    if (!best || found < *best) best = found;
  }
  return best;
}

TEST(PlannerTest, ChoosesWhatAnExhaustiveSearchChooses) {
  int cut = 0;
  int refused = 0;
  int whole = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    const PlanInput input = random_input(seed);
    const Reference reference(input);
    const auto best = exhaustive(reference);
    try {
      const Plan plan = make_plan(input);
      ASSERT_TRUE(best.has_value());
      if (plan.fits_device) {
        ++whole;
        EXPECT_EQ(plan.shards.size(), 1U);
        EXPECT_LE(plan.predicted_step.count(), std::get<0>(*best));
        EXPECT_LE(plan.resident_bytes, input.device_budget);
        continue;
      }
      if (plan.shards.size() > 1) ++cut;
      EXPECT_EQ(std::make_tuple(plan.predicted_step.count(), plan.shards.size(),
                                plan.predicted_peak.count()),
                *best);
      EXPECT_EQ(reference.time_of(ends_of(plan)), plan.predicted_step.count());
    } catch (const DoesNotFit&) {
      ++refused;
      EXPECT_FALSE(best.has_value());
    }
    if (HasFailure()) return;
  }
  // The instances must exercise all three outcomes.
  EXPECT_GT(cut, 300);
  EXPECT_GT(refused, 50);
  EXPECT_GT(whole, 100);
}

TEST(PlannerTest, APlanCoversAllLayersInOrderAndItsUnitsFit) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    const PlanInput input = random_input(seed);
    const Reference reference(input);
    Plan plan;
    try {
      plan = make_plan(input);
    } catch (const DoesNotFit&) {
      continue;
    }
    std::int64_t next = 0;
    for (const ShardPlan& shard : plan.shards) {
      EXPECT_EQ(shard.first_layer, next);
      EXPECT_GT(shard.end_layer, shard.first_layer);
      next = shard.end_layer;
      EXPECT_LE(std::max(shard.forward_required, shard.backward_required), input.device_budget);
      EXPECT_EQ(shard.forward_required, reference.forward_required(shard.first_layer, next));
      EXPECT_EQ(shard.backward_required, reference.backward_required(shard.first_layer, next));
      EXPECT_LE(std::max(shard.forward_required, shard.backward_required), plan.predicted_peak);
    }
    EXPECT_EQ(next, reference.layers());
    EXPECT_LE(plan.predicted_peak, input.device_budget);
    EXPECT_GE(plan.desired, plan.predicted_peak);
    EXPECT_FALSE(plan.shards.back().recompute);
    EXPECT_EQ(plan.shards.back().forward_required, 0_B);
    if (HasFailure()) return;
  }
}

TEST(PlannerTest, ALargerBudgetNeverGivesASlowerPlan) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    PlanInput input = random_input(seed);
    std::optional<Nanoseconds> before;
    for (std::int64_t budget = 20000; budget < 2000000; budget = budget * 5 / 4) {
      input.device_budget = Bytes(budget);
      try {
        const Plan plan = make_plan(input);
        if (before) {
          EXPECT_LE(plan.predicted_step, *before) << budget;
        }
        before = plan.predicted_step;
      } catch (const DoesNotFit&) {
        EXPECT_FALSE(before.has_value()) << "fitted before, not with " << budget;
      }
    }
    if (HasFailure()) return;
  }
}

TEST(PlannerTest, AModelThatFitsIsOneShardAndRecomputesNothing) {
  const Plan plan = make_plan(uniform(6, 1_GiB));
  ASSERT_EQ(plan.shards.size(), 1U);
  EXPECT_TRUE(plan.fits_device);
  EXPECT_EQ(plan.recomputation, Nanoseconds(0));
  // Parameters, gradients and two moments; two inputs; the graphs of five layers; the sixth's peak.
  EXPECT_EQ(plan.resident_bytes, 6 * 1_MiB * 4 + 64_KiB * (2 + 15 + 6));
}

TEST(PlannerTest, AModelThatFitsButForItsMomentsIsOneShardThatDoesNotStay) {
  const PlanInput fitting = uniform(6, 1_GiB);
  const Bytes moments = 12_MiB;
  const Plan plan = make_plan(uniform(6, make_plan(fitting).resident_bytes - moments));
  EXPECT_EQ(plan.shards.size(), 1U);
  EXPECT_FALSE(plan.fits_device);
}

TEST(PlannerTest, TheLastShardTakesAsManyLayersAsFitWithoutRecomputation) {
  const Plan plan = make_plan(uniform(8, 9_MiB));
  ASSERT_GT(plan.shards.size(), 1U);
  EXPECT_FALSE(plan.shards.back().recompute);
  for (std::size_t s = 0; s + 1 < plan.shards.size(); ++s) EXPECT_TRUE(plan.shards[s].recompute);
  const std::int64_t recomputed = plan.shards.back().first_layer;
  EXPECT_EQ(plan.recomputation, std::chrono::milliseconds(2 * 4 * recomputed));
  // One layer more in the last shard would not have fitted.
  const PlanInput input = uniform(8, 9_MiB);
  EXPECT_GT(Reference(input).peak(recomputed - 1, 8), 9_MiB);
}

TEST(PlannerTest, LayersInFrontOfTheFirstTrainableOneHaveNoBackward) {
  PlanInput input = uniform(6, 5_MiB);
  for (std::size_t l = 0; l < 3; ++l) std::swap(input.layers[l].trainable, input.layers[l].frozen);
  input.forced_cuts = {2, 4};
  const Plan plan = make_plan(input);
  EXPECT_FALSE(plan.shards[0].recompute);
  EXPECT_EQ(plan.shards[0].backward, Nanoseconds(0));
  EXPECT_EQ(plan.shards[0].backward_required, 0_B);
  EXPECT_TRUE(plan.shards[1].recompute);
  EXPECT_GT(plan.shards[1].backward, Nanoseconds(0));
  // Only the two layers of the middle shard are run twice.
  EXPECT_EQ(plan.recomputation, std::chrono::milliseconds(2 * 4 * 2));
}

TEST(PlannerTest, ForcedCutsAreUsedExactly) {
  PlanInput input = uniform(6, 64_MiB);
  input.forced_cuts = {1, 4};
  const Plan plan = make_plan(input);
  EXPECT_EQ(ends_of(plan), (Cuts{1, 4, 6}));
  EXPECT_FALSE(plan.fits_device);
}

TEST(PlannerTest, TheShardLimitHolds) {
  PlanInput input = uniform(7, 1_GiB);
  input.shard_limit = 2;
  const Plan plan = make_plan(input);
  EXPECT_EQ(plan.shards.size(), 4U);
  for (const ShardPlan& shard : plan.shards) EXPECT_LE(shard.end_layer - shard.first_layer, 2);
}

TEST(PlannerTest, ATieIsOnePartAndOneAccumulatorPerUse) {
  PlanInput input = uniform(3, 1_GiB);
  input.ties.push_back({1_MiB, false});
  input.layers[0].ties = {0};
  input.layers[2].ties = {0};
  const Bytes plain = make_plan(uniform(3, 1_GiB)).resident_bytes;
  // The part, two accumulators, two moments.
  EXPECT_EQ(make_plan(input).resident_bytes, plain + 5_MiB);
  input.ties[0].frozen = true;
  EXPECT_EQ(make_plan(input).resident_bytes, plain + 1_MiB);
}

TEST(PlannerTest, PredictedTimeCountsWhatCannotHide) {
  PlanInput input = uniform(4, 64_MiB);
  input.forced_cuts = {2};
  input.link_bytes_per_second = 1e12;
  const Plan fast = make_plan(input);
  input.link_bytes_per_second = 1e6;  // 2 MiB of parameters take two seconds
  const Plan slow = make_plan(input);
  Nanoseconds compute{0};
  for (const ShardPlan& shard : slow.shards) compute += shard.forward + shard.backward;
  EXPECT_GT(slow.predicted_step, compute + std::chrono::seconds(8));
  EXPECT_LT(fast.predicted_step, compute + std::chrono::milliseconds(20));
}

std::string refusal(const PlanInput& input) {
  try {
    make_plan(input);
  } catch (const DoesNotFit& error) {
    return error.what();
  }
  return "";
}

TEST(PlannerTest, ALayerThatDoesNotFitIsRefusedWithItsNameAndNumbers) {
  PlanInput input = uniform(5, 4_MiB);
  input.layers[3].trainable = 3_MiB;
  const std::string message = refusal(input);
  EXPECT_THAT(message, HasSubstr("layer \"layer3\" needs"));
  EXPECT_THAT(message, HasSubstr("3.00 MiB parameters"));
  EXPECT_THAT(message, HasSubstr("3.00 MiB gradients"));
  EXPECT_THAT(message, HasSubstr("4.00 MiB"));
  EXPECT_THAT(message, HasSubstr("raise the device's memory"));
}

TEST(PlannerTest, TheSmallestBudgetIsThatOfTheNeediestLayer) {
  PlanInput input = uniform(5, 1_GiB);
  const Reference reference(input);
  Bytes needed;
  for (std::int64_t l = 0; l < 5; ++l) needed = std::max(needed, reference.peak(l, l + 1));
  input.device_budget = needed;
  EXPECT_NO_THROW(make_plan(input));
  input.device_budget = needed - 1_B;
  EXPECT_NE(refusal(input), "");
}

TEST(PlannerTest, AShardCutByHandThatDoesNotFitIsRefusedWithItsLayers) {
  PlanInput input = uniform(6, 6_MiB);
  input.forced_cuts = {1};
  const std::string message = refusal(input);
  EXPECT_THAT(message, HasSubstr("\"layer1\" .. \"layer5\""));
  EXPECT_THAT(message, HasSubstr("cut more finely"));
}

TEST(PlannerTest, InputsThatMakeNoSenseAreRefused) {
  EXPECT_THROW(make_plan(uniform(0, 1_MiB)), InvalidArgument);
  EXPECT_THROW(make_plan(uniform(1, 0_B)), InvalidArgument);
  PlanInput input = uniform(2, 1_GiB);
  input.micro_batches = 0;
  EXPECT_THROW(make_plan(input), InvalidArgument);
  input = uniform(2, 1_GiB);
  for (const Cuts& cuts : {Cuts{0}, Cuts{2}, Cuts{-1}}) {
    input.forced_cuts = cuts;
    EXPECT_THROW(make_plan(input), InvalidArgument);
  }
  input = uniform(2, 1_GiB);
  input.layers[0].ties = {0};
  EXPECT_THROW(make_plan(input), InvalidArgument);
}

TEST(PlannerTest, AHundredLayersArePlannedAtOnce) {
  for (const Bytes budget : {8_MiB, 64_MiB, 300_MiB}) {
    const PlanInput input = uniform(100, budget);
    const auto start = std::chrono::steady_clock::now();
    make_plan(input);
    const auto took = std::chrono::steady_clock::now() - start;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(took, std::chrono::milliseconds(100));
#endif
    RecordProperty("milliseconds_" + std::to_string(budget.count()),
                   std::to_string(seconds(took) * 1e3));
  }
}

TEST(PlannerTest, TheTextNamesShardsBytesAndTimes) {
  PlanInput input = uniform(6, 9_MiB);
  input.forced_cuts = {2, 4};
  const Plan plan = make_plan(input);
  const std::string text =
      plan.to_text({"embedding", "block0", "block1", "block2", "norm", "head"});
  EXPECT_THAT(text, HasSubstr("embedding .. block0"));
  EXPECT_THAT(text, HasSubstr("block1 .. block2"));
  EXPECT_THAT(text, HasSubstr("norm .. head"));
  EXPECT_THAT(text, HasSubstr("recomputed in backward"));
  EXPECT_THAT(text, HasSubstr("graph kept"));
  EXPECT_THAT(text, HasSubstr("9.00 MiB"));
  EXPECT_THAT(text, HasSubstr(to_string(plan.predicted_peak)));
  EXPECT_THAT(text, HasSubstr(to_string(plan.resident_bytes)));
  EXPECT_EQ(text.find("  \n"), std::string::npos) << "no line ends in blanks";
}

}  // namespace
}  // namespace hydra
