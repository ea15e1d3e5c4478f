#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hydra {

/// Computes the cross-entropy of `hidden` times `weight` transposed against `targets`, summed over
/// the targets that are not -100 and divided by `loss_denominator`, in chunks of tokens, so that
/// the logits of a micro-batch never exist.
///
/// Shape (N tokens, C channels, V vocabulary): hidden [N, C] and weight [V, C] fp32 or fp64,
/// targets int64 [N]; the result is a scalar. Workspace: chunk_tokens * V floats and, when
/// recording, N * C.
///
/// While autograd records, the gradients are computed here too, chunk by chunk: the weight's is
/// added in place to `weight.mutable_grad()` (made of zeros when undefined), the hidden one is kept
/// for backward. So each recorded call must be followed by exactly one backward, with seed 1.
/// Errors: InvalidArgument for a target outside the vocabulary; Unsupported from backward when the
/// gradient of the loss is not exactly 1.
at::Tensor chunked_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                 const at::Tensor& targets, double loss_denominator,
                                 std::int64_t chunk_tokens);

}  // namespace hydra
