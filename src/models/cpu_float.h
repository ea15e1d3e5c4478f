#pragma once

#include <ATen/core/Tensor.h>

namespace hydra::detail {

/// Throws Unsupported unless the tensor is fp32 or fp64 on the CPU; `user` names who needs it.
void require_cpu_float(const at::Tensor& tensor, const char* user);

/// Returns the gradient that a leaf accumulates into, made of zeros when there is none yet.
at::Tensor& gradient_accumulator(const at::Tensor& leaf);

}  // namespace hydra::detail
