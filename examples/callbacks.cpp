// Code of one's own beside a job's steps: it halves the learning rate when the loss stops falling,
// adds noise to the gradients, and stops the job when it is good enough.

#include <torch/types.h>

#include <cstdio>

#include "hydra/hydra.h"

class Watch final : public hydra::JobCallbacks {
 public:
  bool edits_gradients() const override { return true; }

  void on_gradients(std::int64_t step, const hydra::Gradients& gradients) override {
    // Seeded by the step, so that the run can be repeated to the bit.
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step));
    for (const auto& [name, gradient] : gradients) {
      gradient.add_(torch::randn(gradient.sizes(), generator), 1e-5);
    }
  }

  hydra::StepDecision on_step(const hydra::StepMetrics& metrics) override {
    hydra::StepDecision decision;
    if (metrics.loss < best_) {
      best_ = metrics.loss;
      worse_ = 0;
    } else if (++worse_ == 10) {
      worse_ = 0;
      decision.learning_rate = metrics.learning_rate / 2;
      std::printf("step %lld: the learning rate is now %g\n", static_cast<long long>(metrics.step),
                  *decision.learning_rate);
    }
    decision.stop = metrics.loss < 0.3;
    return decision;
  }

 private:
  double best_ = 1e30;
  int worse_ = 0;
};

struct Sums : hydra::DataSource {
  hydra::Batch batch(std::int64_t step) override {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step));
    const auto x = torch::rand({64, 16}, generator);
    return {.rows = 64,
            .inputs = {x},
            .side = {{"targets", x.cumsum(1)}},
            .loss_denominator = 64,
            .tokens = 64};
  }
};

int main() {
  hydra::Runtime runtime({.devices = {{.name = "cpu0", .memory = hydra::parse_bytes("1.25MiB")}}});
  const auto job = runtime.submit({.name = "sums",
                                   .model = hydra::make_mlp({.widths = {16, 256, 256, 16}}),
                                   .data = std::make_shared<Sums>(),
                                   .schedule = {.peak = 3e-3},
                                   .max_steps = 500,
                                   .max_gradient_norm = 1.0,
                                   .callbacks = std::make_shared<Watch>()});
  job.get();
  const auto metrics = job.metrics();
  std::printf("stopped after %zu steps with loss %.4f\n", metrics.size(), metrics.back().loss);
  return metrics.size() < 500 ? 0 : 1;
}
