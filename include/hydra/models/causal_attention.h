#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hydra/model/layer_context.h"

namespace hydra {

/// Computes causal multi-head self-attention with dropout on the probabilities.
///
/// Shape (B batch, T tokens, C channels, H heads): `qkv` is [B, T, 3C] with queries, keys and
/// values side by side, each H heads of C / H channels; the result is [B, T, C]. fp32 or fp64.
/// Keeps `qkv` alone for backward: probabilities exist for a block of rows at a time and are
/// computed again in backward, as in flash attention. Each sequence and head is computed by itself,
/// so the bits do not depend on how a batch is cut into micro-batches (dropout's mask does).
/// Source: Dao et al., FlashAttention, 2022, section 3; ours keeps whole rows of a block, so that
/// softmax needs no rescaling and is ATen's.
at::Tensor causal_attention(const at::Tensor& qkv, std::int64_t heads, double dropout_probability,
                            LayerContext& context);

}  // namespace hydra
