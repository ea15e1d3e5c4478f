// Two models with layers of one's own, trained together on a device that holds neither.

#include <torch/torch.h>

#include <cstdio>

#include "hydra/hydra.h"

class Residual : public hydra::Layer {
 public:
  explicit Residual(int width)
      : linear_(register_module("linear", torch::nn::Linear(width, width))) {}
  hydra::Tensors forward(const hydra::Tensors& x, hydra::LayerContext& context) override {
    return {x[0] + hydra::dropout(torch::tanh(linear_(x[0])), 0.1, context)};
  }

 private:
  torch::nn::Linear linear_;
};

struct SquaredError : hydra::Layer {
  hydra::Tensors forward(const hydra::Tensors& y, hydra::LayerContext& context) override {
    return {(y[0] - context.side("targets")).square().sum() / context.loss_denominator()};
  }
};

struct Waves : hydra::DataSource {
  hydra::Batch batch(std::int64_t step) override {
    const auto x = torch::linspace(0, 1, 64 * 256).reshape({64, 256}) + 0.01 * step;
    return {.rows = 64,
            .inputs = {x},
            .side = {{"targets", torch::sin(6 * x)}},
            .loss_denominator = 64,
            .tokens = 64};
  }
};

int main() {
  auto model = std::make_shared<hydra::Model>("residual net");
  for (int i = 0; i < 8; ++i) model->add("block" + std::to_string(i), hydra::layer<Residual>(256));
  model->add("loss", hydra::layer<SquaredError>());

  hydra::Runtime runtime({.devices = {{.name = "cpu0", .memory = hydra::parse_bytes("1.5MiB")}}});
  for (const double rate : {1e-3, 3e-3}) {
    runtime.submit({.name = "rate " + std::to_string(rate),
                    .model = model,
                    .data = std::make_shared<Waves>(),
                    .schedule = {.peak = rate},
                    .max_steps = 20,
                    .micro_batch_size = 16});
  }
  runtime.wait_all();
  std::printf("%s", hydra::to_table(runtime.summary()).c_str());
  for (const auto& job : runtime.jobs()) job.get();
}
