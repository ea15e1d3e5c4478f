#include "torch_side.h"

#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "hydra/data/batch.h"
#include "hydra/device/current_device.h"
#include "hydra/model/cpu_allocator_shim.h"

namespace bench {
namespace {

hydra::Bytes machine_memory() {
  return hydra::Bytes(static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
}

}  // namespace

struct TorchSide::State {
  State(const hydra::Gpt2Options& options, const hydra::Weights& initial)
      : model(options, initial) {
    for (const auto& [name, parameter] : model.parameters()) {
      parameters.push_back(parameter);
      first_moments.push_back(torch::zeros_like(parameter));
      second_moments.push_back(torch::zeros_like(parameter));
      counts.push_back(torch::zeros({}));
    }
  }

  hydra::testing::TorchGpt2 model;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> first_moments;
  std::vector<at::Tensor> second_moments;
  std::vector<at::Tensor> counts;
};

TorchSide::TorchSide(const hydra::Gpt2Options& model, const hydra::Weights& initial,
                     std::shared_ptr<hydra::DataSource> data, Options options)
    : model_(model),
      data_(std::move(data)),
      options_(options),
      device_({.name = "plain loop", .memory = machine_memory()}) {
  hydra::install_cpu_allocator_shim();
  run([&] { state_ = std::make_unique<State>(model_, initial); });
}

TorchSide::~TorchSide() {
  run([this] { state_.reset(); });
}

// The device's worker computes; without warm pages what it allocates comes from malloc.
void TorchSide::run(const std::function<void()>& task) {
  std::promise<void> done;
  device_.submit([&] {
    try {
      torch::set_num_threads(options_.threads);
      const hydra::ScopedCurrentDevice memory(options_.warm_pages ? &device_ : nullptr);
      task();
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.get_future().get();
}

std::vector<double> TorchSide::train(std::int64_t steps) {
  std::vector<double> losses;
  run([&] {
    for (std::int64_t i = 0; i < steps; ++i) losses.push_back(step(next_step_++));
  });
  return losses;
}

double TorchSide::step(std::int64_t number) {
  const hydra::Batch batch = data_->batch(number);
  for (const at::Tensor& parameter : state_->parameters) parameter.mutable_grad().reset();
  double loss = 0;
  for (std::int64_t row = 0; row < batch.rows; row += options_.micro_batch_size) {
    const std::int64_t end = std::min(row + options_.micro_batch_size, batch.rows);
    const at::Tensor part = state_->model.loss(hydra::rows_of(batch, row, end));
    part.backward();
    loss += part.item<float>();
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : state_->parameters) gradients.push_back(parameter.grad());
  const torch::NoGradGuard not_recording;
  for (const at::Tensor& count : state_->counts) count.add_(1);
  const hydra::AdamWOptions adamw;
  at::_fused_adamw_(state_->parameters, gradients, state_->first_moments, state_->second_moments,
                    {}, state_->counts, 1e-4, adamw.beta1, adamw.beta2, adamw.weight_decay,
                    adamw.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  return loss;
}

hydra::Bytes TorchSide::peak() const { return device_.stats().peak_in_use; }

}  // namespace bench
