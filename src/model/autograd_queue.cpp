#include "model/autograd_queue.h"

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include "hydra/device/current_device.h"

namespace hydra {

void release_autograd_queue() {
  // The device may be full of just what is to be released.
  const ScopedCurrentDevice off_device(nullptr);
  at::AutoGradMode recording(true);
  at::Tensor one = at::ones({1}).requires_grad_(true);
  torch::autograd::backward({one * 1}, {});
}

}  // namespace hydra
