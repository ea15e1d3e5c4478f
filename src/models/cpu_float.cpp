#include "cpu_float.h"

#include <ATen/ops/zeros_like.h>

#include <sstream>

#include "hydra/core/error.h"

namespace hydra::detail {

void require_cpu_float(const at::Tensor& tensor, const char* user) {
  const at::ScalarType type = tensor.scalar_type();
  if (tensor.device().is_cpu() && (type == at::kFloat || type == at::kDouble)) return;
  std::ostringstream message;
  message << user << " was given " << tensor.toString() << " on " << tensor.device().str()
          << ": it takes fp32 (or fp64) tensors on the CPU";
  throw Unsupported(message.str());
}

at::Tensor& gradient_accumulator(const at::Tensor& leaf) {
  at::Tensor& gradient = leaf.mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(leaf.detach());
  return gradient;
}

}  // namespace hydra::detail
