#include "hydra/models/token_embedding.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "cpu_float.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

void check_tokens(const at::Tensor& tokens, const at::Tensor& token_weight,
                  const at::Tensor& position_weight) {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong) {
    throw InvalidArgument("embed_tokens was given " + std::to_string(tokens.dim()) +
                          " dimensions of " + tokens.toString() + ": it takes int64 [B, T]");
  }
  if (tokens.size(1) > position_weight.size(0)) {
    throw InvalidArgument(
        "a sequence has " + std::to_string(tokens.size(1)) + " tokens and the model's context " +
        std::to_string(position_weight.size(0)) + ": shorten the sequence or raise the context");
  }
  const std::int64_t vocabulary = token_weight.size(0);
  const auto* token = tokens.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i) {
    if (token[i] < 0 || token[i] >= vocabulary) {
      throw InvalidArgument("token " + std::to_string(token[i]) + " at position " +
                            std::to_string(i) +
                            " of the micro-batch is outside the vocabulary of " +
                            std::to_string(vocabulary) + ": use the model's own tokenizer");
    }
  }
}

// A plain loop in the order of the rows: deterministic for any number of threads, and limited by
// memory at 1 % of a step.
void add_rows(at::Tensor& target, const at::Tensor& rows, const std::int64_t* index,
              std::int64_t index_period) {
  const std::int64_t channels = target.size(1);
  AT_DISPATCH_FLOATING_TYPES(target.scalar_type(), "embed_tokens", [&] {
    const auto* source = rows.const_data_ptr<scalar_t>();
    auto* into = target.mutable_data_ptr<scalar_t>();
    for (std::int64_t row = 0; row < rows.numel() / channels; ++row, source += channels) {
      const std::int64_t at = index != nullptr ? index[row] : row % index_period;
      auto* sum = into + at * channels;
      for (std::int64_t c = 0; c < channels; ++c) sum[c] += source[c];
    }
  });
  // A raw write is invisible to autograd, and the engine sees by the version what was touched.
  target.unsafeGetTensorImpl()->bump_version();
}

class EmbedTokens final : public torch::autograd::Function<EmbedTokens> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* saved, const at::Tensor& tokens,
                            const at::Tensor& token_weight, const at::Tensor& position_weight) {
    saved->save_for_backward({tokens, token_weight, position_weight});
    const std::int64_t channels = token_weight.size(1);
    at::Tensor output =
        at::empty({tokens.size(0), tokens.size(1), channels}, token_weight.options());
    const auto* token = tokens.const_data_ptr<std::int64_t>();
    AT_DISPATCH_FLOATING_TYPES(token_weight.scalar_type(), "embed_tokens", [&] {
      const auto* words = token_weight.const_data_ptr<scalar_t>();
      const auto* positions = position_weight.const_data_ptr<scalar_t>();
      auto* to = output.mutable_data_ptr<scalar_t>();
      for (std::int64_t i = 0; i < tokens.numel(); ++i, to += channels) {
        const auto* word = words + token[i] * channels;
        const auto* position = positions + (i % tokens.size(1)) * channels;
        for (std::int64_t c = 0; c < channels; ++c) to[c] = word[c] + position[c];
      }
    });
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* saved,
                                                 torch::autograd::variable_list gradients) {
    const auto variables = saved->get_saved_variables();
    const at::Tensor& tokens = variables[0];
    const at::Tensor rows = gradients[0].contiguous();
    if (variables[1].requires_grad()) {
      add_rows(detail::gradient_accumulator(variables[1]), rows,
               tokens.const_data_ptr<std::int64_t>(), 0);
    }
    if (variables[2].requires_grad()) {
      add_rows(detail::gradient_accumulator(variables[2]), rows, nullptr, tokens.size(1));
    }
    return {{}, {}, {}};
  }
};

}  // namespace

at::Tensor embed_tokens(const at::Tensor& tokens, const at::Tensor& token_weight,
                        const at::Tensor& position_weight) {
  detail::require_cpu_float(token_weight, "embed_tokens");
  detail::require_cpu_float(position_weight, "embed_tokens");
  const at::Tensor contiguous = tokens.contiguous();
  check_tokens(contiguous, token_weight, position_weight);
  return EmbedTokens::apply(contiguous, token_weight, position_weight);
}

}  // namespace hydra
