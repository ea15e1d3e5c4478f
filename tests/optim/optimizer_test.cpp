#include "hydra/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "hydra/core/error.h"

namespace hydra {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// The largest relative error of one fp32 rounding.
constexpr double kRounding = 0x1p-24;

constexpr std::int64_t kSizes[] = {1, 3, 7, 8, 9, 17, 1021};
/// Shifts by this many floats pass every position in a 64-byte vector.
constexpr std::int64_t kShifts = 16;
/// What lies around a shifted buffer, and must stay.
constexpr float kGuard = 1e6F;

struct Rule {
  const char* name;
  OptimizerOptions options;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"AdamW", AdamWOptions{}},
      {"AdamW with other numbers", AdamWOptions{0.8, 0.95, 1e-3, 0.1}},
      {"SGD", SgdOptions{0.0, 0.01, false}},
      {"SGD with momentum", SgdOptions{0.9, 0.01, false}},
      {"SGD with Nesterov momentum", SgdOptions{0.9, 0.01, true}},
  };
  return all;
}

/// What an update reads and writes.
struct Memory {
  std::vector<float> parameter;
  std::vector<float> gradient;
  std::vector<float> state0;
  std::vector<float> state1;

  explicit Memory(std::int64_t elements)
      : parameter(static_cast<std::size_t>(elements)),
        gradient(parameter),
        state0(parameter),
        state1(parameter) {}

  std::int64_t elements() const { return static_cast<std::int64_t>(parameter.size()); }
};

/// Numbers of both signs over seven powers of ten, the same in every run.
Memory sample(std::int64_t elements) {
  std::mt19937 random(7);
  const auto number = [&random] {
    const double sign = random() % 2 == 0 ? 1 : -1;
    const double fraction = 1 + static_cast<double>(random() % 100'000) / 10'000;
    return static_cast<float>(sign * fraction * std::pow(10.0, -static_cast<double>(random() % 6)));
  };
  Memory memory(elements);
  std::generate(memory.parameter.begin(), memory.parameter.end(), number);
  std::generate(memory.gradient.begin(), memory.gradient.end(), number);
  std::generate(memory.state0.begin(), memory.state0.end(), number);
  std::generate(memory.state1.begin(), memory.state1.end(), [&] { return std::abs(number()); });
  return memory;
}

ParameterUpdate numbers(std::int64_t step = 3) {
  ParameterUpdate update;
  update.step = step;
  update.learning_rate = 0.013;
  update.weight_decay = 0.17;
  update.gradient_factor = 0.7F;
  return update;
}

/// Updates elements `begin` to `end` of `memory` in one call.
void apply(const Optimizer& optimizer, Memory& memory, ParameterUpdate update, std::int64_t begin,
           std::int64_t end) {
  update.parameter = memory.parameter.data() + begin;
  update.gradient = memory.gradient.data() + begin;
  update.state0 = optimizer.state_slots() > 0 ? memory.state0.data() + begin : nullptr;
  update.state1 = optimizer.state_slots() > 1 ? memory.state1.data() + begin : nullptr;
  update.elements = end - begin;
  optimizer.update(update);
}

void apply(const Optimizer& optimizer, Memory& memory, const ParameterUpdate& update) {
  apply(optimizer, memory, update, 0, memory.elements());
}

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result;
  result.reserve(values.size());
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

void expect_same_bits(const Memory& actual, const Memory& expected) {
  EXPECT_EQ(bits(actual.parameter), bits(expected.parameter));
  EXPECT_EQ(bits(actual.gradient), bits(expected.gradient));
  EXPECT_EQ(bits(actual.state0), bits(expected.state0));
  EXPECT_EQ(bits(actual.state1), bits(expected.state1));
}

/// The result when every element is updated by a call of its own.
Memory one_by_one(const Optimizer& optimizer, Memory memory) {
  for (std::int64_t i = 0; i < memory.elements(); ++i) {
    apply(optimizer, memory, numbers(), i, i + 1);
  }
  return memory;
}

// Position

TEST(OptimizerTest, ElementsDoNotDependOnHowTheBufferIsCut) {
  for (const Rule& rule : rules()) {
    SCOPED_TRACE(rule.name);
    const auto optimizer = make_optimizer(rule.options);
    for (const std::int64_t elements : kSizes) {
      SCOPED_TRACE(elements);
      const Memory expected = one_by_one(*optimizer, sample(elements));
      for (const std::int64_t cut : {0, 1, 2, 5, 8, 16, 509, 1013, 1020}) {
        if (cut >= elements) continue;
        SCOPED_TRACE(cut);
        Memory memory = sample(elements);
        // The later part first: parts do not depend on their order either.
        apply(*optimizer, memory, numbers(), cut, elements);
        apply(*optimizer, memory, numbers(), 0, cut);
        expect_same_bits(memory, expected);
      }
    }
  }
}

TEST(OptimizerTest, ElementsDoNotDependOnTheirAddress) {
  for (const Rule& rule : rules()) {
    SCOPED_TRACE(rule.name);
    const auto optimizer = make_optimizer(rule.options);
    for (const std::int64_t elements : kSizes) {
      SCOPED_TRACE(elements);
      const Memory start = sample(elements);
      const Memory expected = one_by_one(*optimizer, start);
      for (std::int64_t shift = 0; shift < kShifts; ++shift) {
        SCOPED_TRACE(shift);
        // The four buffers move by different distances, between guards that must stay.
        const std::int64_t shifts[] = {shift, shift * 3 % kShifts, shift * 5 % kShifts,
                                       shift * 7 % kShifts};
        const auto place = [elements](const std::vector<float>& values, std::int64_t at) {
          std::vector<float> guarded(static_cast<std::size_t>(elements + 2 * kShifts), kGuard);
          std::copy(values.begin(), values.end(), guarded.begin() + at);
          return guarded;
        };
        std::vector<float> parameter = place(start.parameter, shifts[0]);
        const std::vector<float> gradient = place(start.gradient, shifts[1]);
        std::vector<float> state0 = place(start.state0, shifts[2]);
        std::vector<float> state1 = place(start.state1, shifts[3]);
        ParameterUpdate update = numbers();
        update.parameter = parameter.data() + shifts[0];
        update.gradient = gradient.data() + shifts[1];
        update.state0 = state0.data() + shifts[2];
        update.state1 = state1.data() + shifts[3];
        update.elements = elements;
        optimizer->update(update);
        EXPECT_EQ(bits(parameter), bits(place(expected.parameter, shifts[0])));
        EXPECT_EQ(bits(state0), bits(place(expected.state0, shifts[2])));
        EXPECT_EQ(bits(state1), bits(place(expected.state1, shifts[3])));
      }
    }
  }
}

TEST(OptimizerTest, NanStaysInItsElement) {
  for (const Rule& rule : rules()) {
    SCOPED_TRACE(rule.name);
    const auto optimizer = make_optimizer(rule.options);
    for (const std::size_t at : {0U, 5U, 16U}) {
      Memory memory = sample(17);
      Memory expected = memory;
      memory.gradient[at] = std::numeric_limits<float>::quiet_NaN();
      apply(*optimizer, memory, numbers());
      apply(*optimizer, expected, numbers());
      EXPECT_TRUE(std::isnan(memory.parameter[at]));
      memory.parameter[at] = expected.parameter[at];
      EXPECT_EQ(bits(memory.parameter), bits(expected.parameter));
    }
  }
}

TEST(OptimizerTest, NoElementsNeedNoMemory) {
  for (const Rule& rule : rules()) make_optimizer(rule.options)->update(numbers());
}

// Formulas

TEST(OptimizerTest, NumbersThatAreTooSmallToBeNormalCountAsZeroWhereverTheyLie) {
  constexpr float kSmall = 1e-39F;  // times any number of numbers() it stays as small
  for (const Rule& rule : rules()) {
    SCOPED_TRACE(rule.name);
    const auto optimizer = make_optimizer(rule.options);
    for (const std::int64_t elements : kSizes) {
      Memory memory = sample(elements);
      Memory zeros = memory;
      std::fill(memory.gradient.begin(), memory.gradient.end(), -kSmall);
      std::fill(memory.state0.begin(), memory.state0.end(), kSmall);
      std::fill(memory.state1.begin(), memory.state1.end(), kSmall);
      std::fill(zeros.gradient.begin(), zeros.gradient.end(), 0.0F);
      std::fill(zeros.state0.begin(), zeros.state0.end(), 0.0F);
      std::fill(zeros.state1.begin(), zeros.state1.end(), 0.0F);
      const Memory alone = one_by_one(*optimizer, memory);
      apply(*optimizer, memory, numbers());
      apply(*optimizer, zeros, numbers());
      std::fill(memory.gradient.begin(), memory.gradient.end(), 0.0F);  // it is only read
      if (optimizer->state_slots() < 2) memory.state1 = zeros.state1;   // and these are not
      if (optimizer->state_slots() < 1) memory.state0 = zeros.state0;
      expect_same_bits(memory, zeros);
      EXPECT_EQ(bits(memory.parameter), bits(alone.parameter));
    }
  }
}

TEST(OptimizerTest, AnUpdateLeavesTheThreadsOwnArithmeticAsItWas) {
  volatile float small = 1e-39F;
  Memory memory = sample(9);
  apply(*make_optimizer(AdamWOptions{}), memory, numbers());
  EXPECT_EQ(small * 0.5F, 0.5e-39F);
  EXPECT_NE(small * 0.5F, 0.0F);
}

/// The shortest of several updates of one memory, in nanoseconds.
std::int64_t shortest_update(const Optimizer& optimizer, const Memory& start) {
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 15; ++i) {
    Memory memory = start;
    const auto begin = std::chrono::steady_clock::now();
    apply(optimizer, memory, numbers());
    const auto time = std::chrono::steady_clock::now() - begin;
    shortest = std::min<std::int64_t>(shortest, std::chrono::nanoseconds(time).count());
  }
  return shortest;
}

// Without flushing it is two to fifty times as much, as the processor has it.
TEST(OptimizerTest, MomentsThatHaveFadedCostAtMostTwice) {
  const auto optimizer = make_optimizer(AdamWOptions{});
  Memory memory = sample(1 << 16);
  const std::int64_t usual = shortest_update(*optimizer, memory);
  std::fill(memory.gradient.begin(), memory.gradient.end(), 1e-20F);  // its square is too small
  std::fill(memory.state0.begin(), memory.state0.end(), 3e-39F);
  std::fill(memory.state1.begin(), memory.state1.end(), 2e-40F);
  EXPECT_LE(shortest_update(*optimizer, memory), 2 * usual);
}

TEST(OptimizerTest, AdamWFollowsItsFormula) {
  const AdamWOptions options{0.9, 0.99, 1e-6, 0.0};
  const auto optimizer = make_optimizer(options);
  for (const std::int64_t step : {1, 2, 10, 1000, 1'000'000}) {
    SCOPED_TRACE(step);
    const ParameterUpdate update = numbers(step);
    const Memory before = sample(1021);
    Memory after = before;
    apply(*optimizer, after, update);
    const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
    const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
    for (std::size_t i = 0; i < before.parameter.size(); ++i) {
      SCOPED_TRACE(i);
      const double p = before.parameter[i];
      const double g = static_cast<double>(before.gradient[i]) * update.gradient_factor;
      const double old_part = options.beta1 * before.state0[i];
      const double new_part = (1 - options.beta1) * g;
      const double m = old_part + new_part;
      const double v = options.beta2 * before.state1[i] + (1 - options.beta2) * g * g;
      const double denominator = std::sqrt(v / correction2) + options.epsilon;
      const double rate = update.learning_rate / correction1;
      const double kept = p * (1 - update.learning_rate * update.weight_decay);
      const double expected = kept - rate * m / denominator;
      // A term of m has four roundings, v six, half of which reach its root; the quotient and its
      // factor have nine more; p's product three and the difference one. Terms of m may cancel, so
      // the bounds are in their magnitudes.
      const double m_size = std::abs(old_part) + std::abs(new_part);
      EXPECT_NEAR(after.state0[i], m, 4.1 * kRounding * m_size);
      EXPECT_NEAR(after.state1[i], v, 6.1 * kRounding * v);
      EXPECT_NEAR(after.parameter[i], expected,
                  kRounding * (4.1 * std::abs(p) + 17.0 * rate * m_size / denominator));
    }
  }
}

TEST(OptimizerTest, SgdFollowsItsFormula) {
  for (const Rule& rule : rules()) {
    const auto* options = std::get_if<SgdOptions>(&rule.options);
    if (options == nullptr) continue;
    SCOPED_TRACE(rule.name);
    const auto optimizer = make_optimizer(*options);
    const ParameterUpdate update = numbers();
    const Memory before = sample(1021);
    Memory after = before;
    apply(*optimizer, after, update);
    for (std::size_t i = 0; i < before.parameter.size(); ++i) {
      SCOPED_TRACE(i);
      const double p = before.parameter[i];
      const double scaled = static_cast<double>(before.gradient[i]) * update.gradient_factor;
      const double decay = update.weight_decay * p;
      const double old_part = options->momentum * before.state0[i];
      const double g = scaled + decay;
      const double b = old_part + g;
      const double direction = options->nesterov ? g + options->momentum * b : b;
      // No term has more than nine roundings on its way to p; terms may cancel.
      const double b_size = std::abs(old_part) + std::abs(scaled) + std::abs(decay);
      const double size = options->nesterov ? 2 * b_size : b_size;
      if (options->momentum > 0) {
        EXPECT_NEAR(after.state0[i], b, 4.1 * kRounding * b_size);
      }
      EXPECT_NEAR(after.parameter[i], p - update.learning_rate * direction,
                  kRounding * (1.1 * std::abs(p) + 9.1 * update.learning_rate * size));
    }
  }
}

TEST(OptimizerTest, FirstAdamWStepMovesByTheLearningRate) {
  const auto optimizer = make_optimizer(AdamWOptions{0.9, 0.999, 0.0, 0.0});
  Memory memory(1021);
  memory.gradient = sample(1021).gradient;
  ParameterUpdate update;
  update.learning_rate = 0.25;
  apply(*optimizer, memory, update);
  for (std::size_t i = 0; i < memory.gradient.size(); ++i) {
    EXPECT_NEAR(memory.parameter[i], std::copysign(0.25, -memory.gradient[i]),
                16 * kRounding * 0.25);
  }
}

TEST(OptimizerTest, BiasCorrectionEndsAfterManySteps) {
  const auto optimizer = make_optimizer(AdamWOptions{0.9, 0.999, 1e-8, 0.0});
  Memory memory = sample(17);
  const Memory before = memory;
  ParameterUpdate update;
  update.step = 1'000'000;
  update.learning_rate = 0.25;
  apply(*optimizer, memory, update);
  for (std::size_t i = 0; i < before.parameter.size(); ++i) {
    const float quotient = memory.state0[i] / (std::sqrt(memory.state1[i]) + 1e-8F);
    EXPECT_EQ(memory.parameter[i], before.parameter[i] - 0.25F * quotient);
  }
}

TEST(OptimizerTest, BiasCorrectionIsNotRoundedToFloatOnTheWay) {
  // 1 - 1e-7 in fp32 is 1 - 1.19e-7: its millionth power would be off by 2 in 100.
  const AdamWOptions options{0.0, 1 - 1e-7, 0.0, 0.0};
  const auto optimizer = make_optimizer(options);
  Memory memory(1);
  memory.gradient[0] = 1.0F;
  memory.state1[0] = 0.5F;
  ParameterUpdate update;
  update.step = 1'000'000;
  update.learning_rate = 0.25;
  apply(*optimizer, memory, update);
  const double correction = 1 - std::pow(options.beta2, 1e6);
  const double v = options.beta2 * 0.5 + (1 - options.beta2);
  EXPECT_NEAR(memory.parameter[0], -0.25 / std::sqrt(v / correction), 1e-6);
}

// PyTorch

/// Trains a copy by `optimizer` and one by torch's for 20 steps with the same gradients and moving
/// learning rates, and expects them within eight roundings a step.
template <typename TorchOptimizer, typename TorchOptions>
void expect_same_training(const OptimizerOptions& options, const TorchOptions& torch_options) {
  constexpr int kSteps = 20;
  const auto optimizer = make_optimizer(options);
  const Memory start = sample(1021);
  Memory memory(start.elements());
  memory.parameter = start.parameter;
  const at::Tensor parameter =
      torch::tensor(at::ArrayRef<float>(memory.parameter)).requires_grad_(true);
  TorchOptimizer torch_optimizer(std::vector<at::Tensor>{parameter}, torch_options);
  std::vector<double> largest(memory.parameter.size());
  std::mt19937 random(11);
  for (int step = 1; step <= kSteps; ++step) {
    for (float& g : memory.gradient) {
      g = static_cast<float>(static_cast<double>(random() % 20'001) / 10'000 - 1);
    }
    ParameterUpdate update;
    update.step = step;
    update.learning_rate = 0.02 / step;
    update.weight_decay = optimizer->weight_decay();
    apply(*optimizer, memory, update);
    static_cast<TorchOptions&>(torch_optimizer.param_groups()[0].options())
        .lr(update.learning_rate);
    parameter.mutable_grad() = torch::tensor(at::ArrayRef<float>(memory.gradient));
    torch_optimizer.step();
    for (std::size_t i = 0; i < largest.size(); ++i) {
      largest[i] = std::max<double>(largest[i], std::abs(memory.parameter[i]));
    }
  }
  const auto* expected = parameter.template const_data_ptr<float>();
  double moved = 0;
  for (std::size_t i = 0; i < largest.size(); ++i) {
    // All moves together stay below 0.5: what a small parameter adds or takes.
    EXPECT_NEAR(memory.parameter[i], expected[i], kSteps * 8 * kRounding * (largest[i] + 0.5)) << i;
    moved = std::max<double>(moved, std::abs(memory.parameter[i] - start.parameter[i]));
  }
  EXPECT_GT(moved, 0.01);
  EXPECT_LT(moved, 0.5);
}

TEST(OptimizerTest, AdamWTrainsAsInPyTorch) {
  expect_same_training<torch::optim::AdamW>(AdamWOptions{},
                                            torch::optim::AdamWOptions().weight_decay(0.01));
  expect_same_training<torch::optim::AdamW>(
      AdamWOptions{0.8, 0.95, 1e-3, 0.1},
      torch::optim::AdamWOptions().betas({0.8, 0.95}).eps(1e-3).weight_decay(0.1));
}

TEST(OptimizerTest, SgdTrainsAsInPyTorch) {
  for (const Rule& rule : rules()) {
    const auto* options = std::get_if<SgdOptions>(&rule.options);
    if (options == nullptr) continue;
    SCOPED_TRACE(rule.name);
    expect_same_training<torch::optim::SGD>(*options, torch::optim::SGDOptions(0.1)
                                                          .momentum(options->momentum)
                                                          .weight_decay(options->weight_decay)
                                                          .nesterov(options->nesterov));
  }
}

// Weight decay

TEST(OptimizerTest, AdamWDecayIsDecoupled) {
  const auto optimizer = make_optimizer(AdamWOptions{});
  ParameterUpdate update = numbers();
  Memory decayed = sample(17);
  const Memory before = decayed;
  Memory plain = decayed;
  apply(*optimizer, decayed, update);
  update.weight_decay = 0;
  apply(*optimizer, plain, update);
  EXPECT_EQ(bits(decayed.state0), bits(plain.state0));
  EXPECT_EQ(bits(decayed.state1), bits(plain.state1));
  for (std::size_t i = 0; i < before.parameter.size(); ++i) {
    const double p = before.parameter[i];
    const double size = std::abs(p) + std::abs(plain.parameter[i]);
    EXPECT_NEAR(static_cast<double>(plain.parameter[i]) - decayed.parameter[i], 0.013 * 0.17 * p,
                4 * kRounding * size);
  }
}

TEST(OptimizerTest, AdamWDecayWithoutGradientMultipliesOnly) {
  const auto optimizer = make_optimizer(AdamWOptions{});
  Memory memory(17);
  memory.parameter = sample(17).parameter;
  Memory expected = memory;
  for (float& p : expected.parameter) p *= static_cast<float>(1 - 0.013 * 0.17);
  apply(*optimizer, memory, numbers());
  expect_same_bits(memory, expected);
}

TEST(OptimizerTest, SgdDecayGoesThroughTheMomentum) {
  const auto optimizer = make_optimizer(SgdOptions{0.9, 0.0, false});
  Memory memory(1);
  memory.parameter[0] = 2.0F;
  ParameterUpdate update;
  update.learning_rate = 0.5;
  update.weight_decay = 0.25;
  apply(*optimizer, memory, update);
  EXPECT_EQ(memory.state0[0], 0.5F);
  EXPECT_EQ(memory.parameter[0], 1.75F);
}

TEST(OptimizerTest, DecayIsTheUpdatesNotTheOptions) {
  ParameterUpdate update = numbers();
  update.weight_decay = 0.5;
  Memory adamw[] = {sample(17), sample(17)};
  apply(*make_optimizer(AdamWOptions{0.9, 0.999, 1e-8, 0.0}), adamw[0], update);
  apply(*make_optimizer(AdamWOptions{0.9, 0.999, 1e-8, 0.9}), adamw[1], update);
  expect_same_bits(adamw[0], adamw[1]);
  Memory sgd[] = {sample(17), sample(17)};
  apply(*make_optimizer(SgdOptions{0.9, 0.0, false}), sgd[0], update);
  apply(*make_optimizer(SgdOptions{0.9, 0.9, false}), sgd[1], update);
  expect_same_bits(sgd[0], sgd[1]);
}

// Gradient factor

TEST(OptimizerTest, GradientFactorMultipliesTheGradientFirst) {
  for (const Rule& rule : rules()) {
    SCOPED_TRACE(rule.name);
    const auto optimizer = make_optimizer(rule.options);
    for (const float factor : {0.0F, 1e-3F, 0.7F, 1.0F}) {
      SCOPED_TRACE(factor);
      Memory factored = sample(1021);
      const std::vector<float> gradient = factored.gradient;
      Memory multiplied = factored;
      for (float& g : multiplied.gradient) g *= factor;
      ParameterUpdate update = numbers();
      update.gradient_factor = factor;
      apply(*optimizer, factored, update);
      update.gradient_factor = 1.0F;
      apply(*optimizer, multiplied, update);
      EXPECT_EQ(bits(factored.parameter), bits(multiplied.parameter));
      EXPECT_EQ(bits(factored.state0), bits(multiplied.state0));
      EXPECT_EQ(bits(factored.state1), bits(multiplied.state1));
      EXPECT_EQ(bits(factored.gradient), bits(gradient));
    }
  }
}

TEST(OptimizerTest, GradientFactorOneLeavesTheBits) {
  const auto optimizer = make_optimizer(SgdOptions{});
  Memory memory(1021);
  memory.gradient = sample(1021).gradient;
  memory.gradient[3] = std::numeric_limits<float>::min();
  memory.gradient[4] = std::numeric_limits<float>::max();
  std::vector<float> expected = memory.gradient;
  for (float& g : expected) g = -g;
  ParameterUpdate update;
  update.learning_rate = 1.0;
  apply(*optimizer, memory, update);
  EXPECT_EQ(bits(memory.parameter), bits(expected));
}

// Options

TEST(MakeOptimizerTest, TellsItsStateAndDecay) {
  const auto adamw = make_optimizer(AdamWOptions{0.9, 0.999, 1e-8, 0.3});
  EXPECT_EQ(adamw->state_slots(), 2);
  EXPECT_EQ(adamw->weight_decay(), 0.3);
  const auto sgd = make_optimizer(SgdOptions{0.0, 0.2, false});
  EXPECT_EQ(sgd->state_slots(), 0);
  EXPECT_EQ(sgd->weight_decay(), 0.2);
  EXPECT_EQ(make_optimizer(SgdOptions{0.9, 0.0, false})->state_slots(), 1);
  EXPECT_EQ(make_optimizer(SgdOptions{0.9, 0.0, true})->state_slots(), 1);
}

std::string refusal(const OptimizerOptions& options) {
  try {
    make_optimizer(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MakeOptimizerTest, OptionsOnTheBordersAreAccepted) {
  EXPECT_EQ(refusal(AdamWOptions{0.0, 0.0, 0.0, 0.0}), "accepted");
  EXPECT_EQ(refusal(AdamWOptions{0.999999, 0.999999, 1.0, 10.0}), "accepted");
  EXPECT_EQ(refusal(SgdOptions{0.0, 0.0, false}), "accepted");
  EXPECT_EQ(refusal(SgdOptions{0.999999, 10.0, true}), "accepted");
}

TEST(MakeOptimizerTest, AdamWOptionsOutOfRangeAreRefusedByName) {
  for (const double value : {-0.1, 1.0, kNan, kInfinity}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(refusal(AdamWOptions{value, 0.999, 1e-8, 0.0}), HasSubstr("AdamW's beta1 is"));
    EXPECT_THAT(refusal(AdamWOptions{0.9, value, 1e-8, 0.0}), HasSubstr("AdamW's beta2 is"));
  }
  for (const double value : {-0.1, kNan, kInfinity}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(refusal(AdamWOptions{0.9, 0.999, value, 0.0}), HasSubstr("AdamW's epsilon is"));
    EXPECT_THAT(refusal(AdamWOptions{0.9, 0.999, 1e-8, value}),
                HasSubstr("AdamW's weight_decay is"));
  }
}

TEST(MakeOptimizerTest, SgdOptionsOutOfRangeAreRefusedByName) {
  for (const double value : {-0.1, 1.0, kNan, kInfinity}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(refusal(SgdOptions{value, 0.0, false}), HasSubstr("SGD's momentum is"));
  }
  for (const double value : {-0.1, kNan, kInfinity}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(refusal(SgdOptions{0.9, value, false}), HasSubstr("SGD's weight_decay is"));
  }
  EXPECT_THAT(refusal(SgdOptions{0.0, 0.0, true}), HasSubstr("nesterov needs a positive momentum"));
}

// Reductions

TEST(SquareSumTest, NothingSumsToZero) { EXPECT_EQ(square_sum(nullptr, 0), 0.0); }

TEST(SquareSumTest, CountsEveryElementOnce) {
  for (const std::int64_t elements : {1, 2, 15, 16, 17, 31, 32, 33, 1021}) {
    std::vector<float> values;
    for (std::int64_t i = 1; i <= elements; ++i) values.push_back(static_cast<float>(i));
    const std::int64_t expected = elements * (elements + 1) * (2 * elements + 1) / 6;
    EXPECT_EQ(square_sum(values.data(), elements), static_cast<double>(expected));
  }
}

TEST(SquareSumTest, IsAsGoodAsDouble) {
  std::vector<float> ones(1001, 1.0F);
  ones[0] = 0x1p12F;
  EXPECT_EQ(square_sum(ones.data(), 1001), 0x1p24 + 1000);
  const std::vector<float> values = sample(1021).gradient;
  long double expected = 0;
  for (const float value : values) expected += static_cast<long double>(value) * value;
  const auto rounded = static_cast<double>(expected);
  // Squares are exact in double; each goes through fewer than 64 + 16 additions.
  EXPECT_NEAR(square_sum(values.data(), 1021), rounded, 80 * 0x1p-53 * rounded);
}

TEST(SquareSumTest, SquaresBeyondFloatAreInRange) {
  const float values[] = {std::numeric_limits<float>::max(), 1e30F};
  EXPECT_TRUE(std::isfinite(square_sum(values, 2)));
  const float small = 1e-30F;
  EXPECT_EQ(square_sum(&small, 1), static_cast<double>(small) * small);
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(square_sum(&least, 1), 0x1p-298);
}

TEST(SquareSumTest, NonFiniteElementsShow) {
  for (const std::size_t at : {0U, 15U, 16U}) {
    std::vector<float> values(17, 1.0F);
    values[at] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(square_sum(values.data(), 17), kInfinity);
    values[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(square_sum(values.data(), 17)));
  }
}

TEST(SquareSumTest, DoesNotDependOnTheAddress) {
  for (const std::int64_t elements : kSizes) {
    SCOPED_TRACE(elements);
    const std::vector<float> values = sample(elements).gradient;
    const double expected = square_sum(values.data(), elements);
    for (std::int64_t shift = 0; shift < kShifts; ++shift) {
      std::vector<float> moved(static_cast<std::size_t>(elements + 2 * kShifts), kGuard);
      std::copy(values.begin(), values.end(), moved.begin() + shift);
      EXPECT_EQ(square_sum(moved.data() + shift, elements), expected);
    }
  }
}

TEST(AddIntoTest, AddsElementByElementAtAnyAddress) {
  for (const std::int64_t elements : kSizes) {
    SCOPED_TRACE(elements);
    const Memory values = sample(elements);
    for (std::int64_t shift = 0; shift < kShifts; ++shift) {
      SCOPED_TRACE(shift);
      std::vector<float> target(static_cast<std::size_t>(elements + 2 * kShifts), kGuard);
      std::copy(values.parameter.begin(), values.parameter.end(), target.begin() + shift);
      std::vector<float> expected = target;
      for (std::size_t i = 0; i < values.gradient.size(); ++i) {
        expected[static_cast<std::size_t>(shift) + i] += values.gradient[i];
      }
      add_into(target.data() + shift, values.gradient.data(), elements);
      EXPECT_EQ(bits(target), bits(expected));
    }
  }
  add_into(nullptr, nullptr, 0);
}

TEST(ClipFactorTest, SmallNormsAreLeftAlone) {
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0F);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0F);
  EXPECT_EQ(clip_factor(1e30, kInfinity), 1.0F);
}

TEST(ClipFactorTest, LargeNormsComeToTheMaximum) {
  EXPECT_FLOAT_EQ(clip_factor(4.0, 1.0), 0.25F);
  EXPECT_FLOAT_EQ(clip_factor(1e20, 2.0), 2e-20F);
  // At the border the 1e-6 in the divisor counts.
  EXPECT_FLOAT_EQ(clip_factor(1.0, 1.0), 1.0F / 1.000001F);
  EXPECT_LT(clip_factor(1.0, 1.0), 1.0F);
}

TEST(ClipFactorTest, MaximumZeroAndInfiniteNormsClipAllAway) {
  EXPECT_EQ(clip_factor(4.0, 0.0), 0.0F);
  EXPECT_EQ(clip_factor(0.0, 0.0), 0.0F);
  EXPECT_EQ(clip_factor(kInfinity, 1.0), 0.0F);
}

TEST(ClipFactorTest, NanIsHandedOn) {
  EXPECT_TRUE(std::isnan(clip_factor(kNan, 1.0)));
  EXPECT_TRUE(std::isnan(clip_factor(1.0, kNan)));
  EXPECT_TRUE(std::isnan(clip_factor(kInfinity, kInfinity)));
}

TEST(ClipFactorTest, ClipsAsPyTorchDoes) {
  for (const double max_norm : {1e-3, 0.5, 1.0, 5.0, 100.0}) {
    SCOPED_TRACE(max_norm);
    const at::Tensor parameter = torch::zeros({4}).requires_grad_(true);
    const std::vector<float> gradient = {3.0F, -1.0F, 0.5F, 2.0F};
    parameter.mutable_grad() = torch::tensor(at::ArrayRef<float>(gradient));
    torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{parameter}, max_norm);
    const float factor = clip_factor(std::sqrt(square_sum(gradient.data(), 4)), max_norm);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float expected = parameter.grad()[static_cast<std::int64_t>(i)].item<float>();
      EXPECT_FLOAT_EQ(gradient[i] * factor, expected);
    }
  }
}

}  // namespace
}  // namespace hydra
