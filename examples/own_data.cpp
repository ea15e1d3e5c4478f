// A data set of one's own: a step number gives that step's mini-batch, so that a run can be
// repeated.

#include <torch/types.h>

#include <cstdio>

#include "hydra/hydra.h"

/// Which of ten squares of a 16 x 16 image is bright. Made from numbers; one that reads files would
/// open them in its constructor, and throw hydra::DataError for a step that it has nothing for.
class BrightSquares final : public hydra::DataSource {
 public:
  explicit BrightSquares(std::uint64_t seed) : seed_(seed) {}

  // Called on the job's loader thread, some steps ahead. A function of the step alone: the
  // generator is made anew for each.
  hydra::Batch batch(std::int64_t step) override {
    constexpr std::int64_t kRows = 32;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(
        seed_ + static_cast<std::uint64_t>(step) * 1000003);
    const auto images = 0.3 * torch::randn({kRows, 3, 16, 16}, generator);
    const auto targets = torch::randint(10, {kRows}, generator, torch::kLong);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto square = targets[row].item<std::int64_t>();
      const std::int64_t top = square / 4 * 5;
      const std::int64_t left = square % 4 * 4;
      images[row].slice(1, top, top + 4).slice(2, left, left + 4).add_(1.0);
    }
    hydra::Batch batch;
    batch.rows = kRows;  // every tensor's first dimension: a micro-batch is a range of rows
    batch.inputs = {images};
    batch.side = {{"targets", targets}};
    batch.loss_denominator = kRows;  // of the whole mini-batch, however it is divided
    batch.tokens = kRows;
    return batch;
  }

 private:
  std::uint64_t seed_;
};

int main() {
  hydra::Runtime runtime({.devices = {{.name = "cpu0", .memory = hydra::parse_bytes("4MiB")}}});
  const auto job = runtime.submit({.name = "squares",
                                   .model = hydra::make_conv_net({}),
                                   .data = std::make_shared<BrightSquares>(7),
                                   .schedule = {.peak = 3e-3},
                                   .max_steps = 40,
                                   .micro_batch_size = 8});
  job.get();
  const auto metrics = job.metrics();
  std::printf("loss %.3f at first, %.3f in the end\n", metrics.front().loss, metrics.back().loss);
  return metrics.back().loss < metrics.front().loss ? 0 : 1;
}
