#pragma once

#include <ATen/core/Tensor.h>

namespace hydra {

/// Looks tokens up and adds learned positions.
///
/// Shape (B batch, T tokens, C channels, V vocabulary): tokens int64 [B, T], token_weight [V, C],
/// position_weight [T or more, C], fp32 or fp64; the result is [B, T, C]. Backward adds row by row,
/// in the order of the tokens, into the weights' `mutable_grad()` (made of zeros when undefined):
/// no temporary of the weights' size, and bits that do not depend on threads. Errors:
/// InvalidArgument for a token outside the vocabulary or more tokens than positions.
at::Tensor embed_tokens(const at::Tensor& tokens, const at::Tensor& token_weight,
                        const at::Tensor& position_weight);

}  // namespace hydra
