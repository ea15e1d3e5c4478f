#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "hydra/model/model.h"

namespace hydra {

/// The numbers that define a GPT-2.
/// Units: width, context and vocabulary in elements; head_chunk_tokens in tokens.
struct Gpt2Options {
  std::int64_t layers = 12;
  std::int64_t width = 768;  ///< C; a multiple of `heads`
  std::int64_t heads = 12;
  std::int64_t context = 1024;  ///< longest sequence, in tokens
  std::int64_t vocabulary_size = 50257;
  double dropout = 0.1;  ///< after the embedding, on attention probabilities, on residual branches
  /// Tokens whose logits exist at once: the head's workspace is this times vocabulary_size floats.
  /// Larger is a little faster. Part of the job's definition: it is seen in the weight gradient's
  /// last bits.
  std::int64_t head_chunk_tokens = 256;
  double initializer_range = 0.02;  ///< standard deviation of initial weights
  double epsilon = 1e-5;            ///< of the layer norms
};

/// Returns the options of a published size: "gpt2" (or "124M"), "gpt2-medium" ("355M"),
/// "gpt2-large" ("774M"), "gpt2-xl" ("1.5B"). Errors: InvalidArgument lists the names.
Gpt2Options gpt2_size(std::string_view name);

/// Makes a GPT-2 language model: "embedding", "block0", "block1", …, "head".
///
/// Pre-norm blocks, learned positions, tanh-GELU, residual projections initialised with a standard
/// deviation of initializer_range / sqrt(2 * layers). Names and shapes of parameters within a layer
/// are Hugging Face's ("ln_1.weight", "attn.c_attn.weight" [C, 3C], …); the final norm is
/// "head.ln_f". "embedding.wte.weight" and "head.weight" are tied.
///
/// Shape (B batch, T tokens <= context): one input, int64 tokens [B, T]; side input "targets",
/// int64 [B, T], -100 where a position has none. The output is the sum of the targets' negative
/// log-likelihoods divided by context.loss_denominator().
///
/// The head computes its gradients during the forward pass, chunk by chunk, so it runs forward once
/// for each backward, and backward starts at the loss itself with seed 1.
/// Returned mutable, so that parameters may be frozen and cuts forced before it is shared.
/// Errors: InvalidArgument names the option, its value and what it must be.
/// Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
std::shared_ptr<Model> make_gpt2(const Gpt2Options& options);

}  // namespace hydra
