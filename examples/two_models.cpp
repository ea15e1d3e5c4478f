// Two different models share one device that is smaller than either of them.

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cstdio>

#include "hydra/hydra.h"

namespace nn = torch::nn;

struct Parabola : hydra::DataSource {
  hydra::Batch batch(std::int64_t step) override {
    const auto x = torch::linspace(-1, 1, 32 * 128).reshape({32, 128}) + 0.01 * step;
    return {.rows = 32,
            .inputs = {x},
            .side = {{"targets", x * x}},
            .loss_denominator = 32,
            .tokens = 32};
  }
};

hydra::JobOptions job(const std::string& name, const nn::Sequential& modules) {
  // Each module of the Sequential becomes a layer, and borders of shards lie between layers.
  const auto model = hydra::wrap(name, modules);
  model->add("loss", hydra::mean_squared_error_loss());
  return {.name = name,
          .model = model,
          .data = std::make_shared<Parabola>(),
          .max_steps = 20,
          .micro_batch_size = 8};
}

int main() {
  const nn::Sequential wide(nn::Linear(128, 1024), nn::GELU(), nn::Linear(1024, 128));
  const nn::Sequential deep(nn::Linear(128, 256), nn::Tanh(),
                            nn::LayerNorm(nn::LayerNormOptions({256})), nn::Linear(256, 256),
                            nn::Tanh(), nn::Linear(256, 256), nn::Tanh(), nn::Linear(256, 128));

  hydra::Runtime runtime({.devices = {{.name = "cpu0", .memory = hydra::parse_bytes("1.75MiB")}}});
  const auto a = runtime.submit(job("wide", wide));
  const auto b = runtime.submit(job("deep", deep));
  std::printf("%s: %zu shards, %s: %zu shards\n", a.name().c_str(), a.plan().shards.size(),
              b.name().c_str(), b.plan().shards.size());
  runtime.wait_all();
  std::printf("%s", hydra::to_table(runtime.summary()).c_str());
  a.get();  // throws what a job failed with
  b.get();
}
