#include "hydra/models/chunked_head.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>

#include "cpu_float.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

constexpr std::int64_t kIgnored = -100;
// Rows whose gradient is taken at once: at a vocabulary of 50 257 they are 1.5 MiB, so that the
// second of log-softmax's backward operands stays in the cache and costs no chunk of its own.
constexpr std::int64_t kGradientRows = 8;

void check_targets(const at::Tensor& targets, std::int64_t tokens, std::int64_t vocabulary) {
  if (targets.scalar_type() != at::kLong || targets.numel() != tokens) {
    throw InvalidArgument("the head was given " + std::to_string(targets.numel()) + " targets of " +
                          targets.toString() + " for " + std::to_string(tokens) +
                          " tokens: give one int64 for each");
  }
  const auto* target = targets.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (target[i] != kIgnored && (target[i] < 0 || target[i] >= vocabulary)) {
      throw InvalidArgument("target " + std::to_string(target[i]) + " at position " +
                            std::to_string(i) +
                            " of the micro-batch is outside the vocabulary of " +
                            std::to_string(vocabulary) + ": use -100 where a token has no target");
    }
  }
}

// Sums in double, so that the loss does not depend on how tokens are grouped in chunks.
double negative_log_likelihood(const at::Tensor& log_probabilities, const std::int64_t* targets) {
  const float* row = log_probabilities.const_data_ptr<float>();
  double sum = 0.0;
  for (std::int64_t i = 0; i < log_probabilities.size(0); ++i, row += log_probabilities.size(1)) {
    if (targets[i] != kIgnored) sum -= static_cast<double>(row[targets[i]]);
  }
  return sum;
}

// Turns log-probabilities into the gradients of the logits, in place. `one_hot` is zero before and
// after: [kGradientRows, V].
void to_logit_gradients(at::Tensor& log_probabilities, const std::int64_t* targets,
                        at::Tensor& one_hot, float target_gradient) {
  const std::int64_t vocabulary = log_probabilities.size(1);
  float* marks = one_hot.mutable_data_ptr<float>();
  for (std::int64_t first = 0; first < log_probabilities.size(0); first += kGradientRows) {
    const std::int64_t rows = std::min(kGradientRows, log_probabilities.size(0) - first);
    const auto mark = [&](float value) {
      for (std::int64_t i = 0; i < rows; ++i) {
        if (targets[first + i] != kIgnored) marks[i * vocabulary + targets[first + i]] = value;
      }
    };
    at::Tensor slice = log_probabilities.narrow(0, first, rows);
    mark(target_gradient);
    at::_log_softmax_backward_data_out(slice, one_hot.narrow(0, 0, rows), slice, -1, at::kFloat);
    mark(0.0F);
  }
}

struct HeadResult {
  at::Tensor loss;
  at::Tensor hidden_gradient;  // undefined when nothing asks for it
};

HeadResult run_chunks(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                      double loss_denominator, std::int64_t chunk_tokens, bool hidden_gradient,
                      bool weight_gradient) {
  const at::NoGradGuard no_grad;
  const std::int64_t tokens = hidden.size(0);
  const std::int64_t vocabulary = weight.size(0);
  const std::int64_t chunk = std::min(chunk_tokens, tokens);
  const at::Tensor logits = at::empty({chunk, vocabulary}, hidden.options());
  at::Tensor one_hot;
  HeadResult result;
  if (hidden_gradient || weight_gradient) {
    one_hot = at::zeros({std::min(kGradientRows, chunk), vocabulary}, hidden.options());
  }
  if (hidden_gradient) result.hidden_gradient = at::empty_like(hidden);

  double sum = 0.0;
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, tokens - first);
    const at::Tensor inputs = hidden.narrow(0, first, count);
    const auto* chunk_targets = targets.const_data_ptr<std::int64_t>() + first;
    at::Tensor buffer = logits.narrow(0, 0, count);
    at::mm_out(buffer, inputs, weight.t());
    at::_log_softmax_out(buffer, buffer, -1, false);
    sum += negative_log_likelihood(buffer, chunk_targets);
    if (!one_hot.defined()) continue;
    to_logit_gradients(buffer, chunk_targets, one_hot, static_cast<float>(-1.0 / loss_denominator));
    if (hidden_gradient) {
      at::Tensor rows = result.hidden_gradient.narrow(0, first, count);
      at::mm_out(rows, buffer, weight);
    }
    if (weight_gradient) detail::gradient_accumulator(weight).addmm_(buffer.t(), inputs);
  }
  result.loss = at::scalar_tensor(sum / loss_denominator, hidden.options());
  return result;
}

class ChunkedCrossEntropy final : public torch::autograd::Function<ChunkedCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* saved, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            double loss_denominator, std::int64_t chunk_tokens) {
    HeadResult result = run_chunks(hidden, weight, targets, loss_denominator, chunk_tokens,
                                   hidden.requires_grad(), weight.requires_grad());
    saved->saved_data["hidden_gradient"] = result.hidden_gradient;
    return result.loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* saved,
                                                 torch::autograd::variable_list gradients) {
    const float seed = gradients[0].item<float>();
    if (seed != 1.0F) {
      throw Unsupported(
          "backward reached the vocabulary head with a gradient of " + std::to_string(seed) +
          " instead of 1: let the head's loss be the model's loss as it is, and scale "
          "the learning rate instead");
    }
    return {saved->saved_data["hidden_gradient"].toTensor(), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor chunked_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                 const at::Tensor& targets, double loss_denominator,
                                 std::int64_t chunk_tokens) {
  detail::require_cpu_float(hidden, "the vocabulary head");
  detail::require_cpu_float(weight, "the vocabulary head");
  if (hidden.dim() != 2 || hidden.size(1) != weight.size(1) || chunk_tokens < 1) {
    throw InvalidArgument("the vocabulary head was given hidden states of width " +
                          std::to_string(hidden.size(-1)) + ", a weight of width " +
                          std::to_string(weight.size(1)) + " and chunks of " +
                          std::to_string(chunk_tokens) + " tokens");
  }
  const at::Tensor contiguous = targets.reshape({-1}).contiguous();
  check_targets(contiguous, hidden.size(0), weight.size(0));
  if (at::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad())) {
    return ChunkedCrossEntropy::apply(hidden, weight, contiguous, loss_denominator, chunk_tokens);
  }
  return run_chunks(hidden, weight, contiguous, loss_denominator, chunk_tokens, false, false).loss;
}

}  // namespace hydra
