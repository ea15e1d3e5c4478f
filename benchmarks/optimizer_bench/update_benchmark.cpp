// What an update costs per element: usual numbers, and moments that have faded below the normal
// ones, which are flushed. Bytes are those that it has to move.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "hydra/optim/optimizer.h"

namespace {

struct Numbers {
  float gradient, first, second;
};
constexpr Numbers kUsual{1e-3F, 1e-3F, 1e-6F};
constexpr Numbers kFaded{1e-20F, 3e-39F, 2e-40F};

void update(benchmark::State& state, const hydra::OptimizerOptions& options, Numbers numbers) {
  const auto optimizer = hydra::make_optimizer(options);
  const auto elements = static_cast<std::size_t>(state.range(0));
  std::vector<float> parameter(elements, 0.5F);
  const std::vector<float> gradient(elements, numbers.gradient);
  std::vector<float> first(elements);
  std::vector<float> second(elements);
  const int slots = optimizer->state_slots();
  for (auto _ : state) {
    state.PauseTiming();  // each round begins with the same numbers
    first.assign(elements, numbers.first);
    second.assign(elements, numbers.second);
    state.ResumeTiming();
    optimizer->update({.parameter = parameter.data(),
                       .gradient = gradient.data(),
                       .state0 = slots > 0 ? first.data() : nullptr,
                       .state1 = slots > 1 ? second.data() : nullptr,
                       .elements = state.range(0),
                       .step = 100,
                       .learning_rate = 1e-3,
                       .weight_decay = 0.01});
    benchmark::DoNotOptimize(parameter.data());
  }
  const std::int64_t bytes_per_element = (3 + 2 * slots) * 4;
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() * state.range(0) * bytes_per_element);
}

constexpr std::int64_t kInCache = 1 << 16;
constexpr std::int64_t kInMemory = 1 << 23;

BENCHMARK_CAPTURE(update, adamw, hydra::AdamWOptions{}, kUsual)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK_CAPTURE(update, adamw_faded, hydra::AdamWOptions{}, kFaded)
    ->Arg(kInCache)
    ->Arg(kInMemory);
BENCHMARK_CAPTURE(update, momentum, hydra::SgdOptions{.momentum = 0.9}, kUsual)
    ->Arg(kInCache)
    ->Arg(kInMemory);
BENCHMARK_CAPTURE(update, momentum_faded, hydra::SgdOptions{.momentum = 0.9}, kFaded)
    ->Arg(kInCache)
    ->Arg(kInMemory);

}  // namespace

BENCHMARK_MAIN();
