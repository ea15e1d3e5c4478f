#include "hydra/testing/random_data.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>

#include "hydra/core/random.h"

namespace hydra::testing {
namespace {

std::uint64_t step_seed(std::uint64_t seed, std::int64_t step) {
  return mix_seed(seed, {static_cast<std::uint64_t>(step)});
}

at::Generator generator_of(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

}  // namespace

Batch RandomTokens::batch(std::int64_t step) {
  SplitMix64 random(step_seed(options_.seed, step));
  const auto vocabulary = static_cast<std::uint64_t>(options_.vocabulary_size);
  const at::Tensor inputs = at::empty({options_.rows, options_.tokens}, at::kLong);
  const at::Tensor targets = at::empty_like(inputs);
  auto* input = inputs.mutable_data_ptr<std::int64_t>();
  auto* target = targets.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < options_.rows; ++row) {
    std::uint64_t token = random.below(vocabulary);
    for (std::int64_t t = 0; t < options_.tokens; ++t) {
      const std::uint64_t next =
          random.below(10) == 0 ? random.below(vocabulary) : (3 * token + 1) % vocabulary;
      *input++ = static_cast<std::int64_t>(token);
      *target++ = static_cast<std::int64_t>(next);
      token = next;
    }
  }
  Batch batch;
  batch.rows = options_.rows;
  batch.inputs = {inputs};
  batch.side = {{"targets", targets}};
  batch.tokens = options_.rows * options_.tokens;
  batch.loss_denominator = static_cast<double>(batch.tokens);
  return batch;
}

Batch RandomRegression::batch(std::int64_t step) {
  at::Generator random = generator_of(step_seed(options_.seed, step));
  // The map is the source's, not the step's: it is what there is to learn.
  at::Generator fixed = generator_of(options_.seed);
  const at::Tensor map = at::randn({options_.in, options_.out}, fixed, at::TensorOptions());
  const at::Tensor inputs = at::randn({options_.rows, options_.in}, random, at::TensorOptions());
  Batch batch;
  batch.rows = options_.rows;
  batch.inputs = {inputs};
  batch.side = {{"targets", at::matmul(at::sin(inputs), map)}};
  batch.tokens = options_.rows;
  batch.loss_denominator = static_cast<double>(options_.rows);
  return batch;
}

Batch RandomImages::batch(std::int64_t step) {
  at::Generator random = generator_of(step_seed(options_.seed, step));
  const at::Tensor images =
      at::randn({options_.rows, options_.channels, options_.size, options_.size}, random,
                at::TensorOptions());
  const at::Tensor targets =
      at::randint(0, options_.classes, {options_.rows}, random, at::TensorOptions(at::kLong));
  const auto* target = targets.const_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < options_.rows; ++row) {
    const std::int64_t band = target[row] * options_.size / options_.classes;
    images.select(0, row).narrow(1, band, 1).add_(2.0);
  }
  Batch batch;
  batch.rows = options_.rows;
  batch.inputs = {images};
  batch.side = {{"targets", targets}};
  batch.tokens = options_.rows;
  batch.loss_denominator = static_cast<double>(options_.rows);
  return batch;
}

}  // namespace hydra::testing
