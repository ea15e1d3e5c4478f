#include "hydra/models/chunked_head.h"

#include <ATen/Parallel.h>
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
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cpu_float.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

constexpr std::int64_t kIgnored = -100;
// Floats that the rows of a chunk are padded to: with rows of 50 257 floats, which begin anywhere
// in a cache line, MKL takes a third longer for the logits.
constexpr std::int64_t kRowAlignment = 16;

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

// The logits of one chunk of tokens, turned in place into log-probabilities and then into the
// gradients of the logits: row by row, so that a row stays in the cache and is contiguous.
class ChunkBuffer {
 public:
  ChunkBuffer(std::int64_t tokens, std::int64_t vocabulary, const at::TensorOptions& options)
      : vocabulary_(vocabulary),
        padded_(at::empty({tokens, (vocabulary + kRowAlignment - 1) & -kRowAlignment}, options)),
        one_hot_(at::zeros({at::get_num_threads(), vocabulary}, options)) {}

  // Shape: [tokens, V], rows padded.
  at::Tensor rows(std::int64_t tokens) const {
    return padded_.narrow(0, 0, tokens).narrow(1, 0, vocabulary_);
  }

  // Returns the sum of the targets' negative log-likelihoods, in double and in the order of tokens,
  // so that it does not depend on chunks or threads. With a `target_gradient`, `rows` become
  // gradients.
  double finish(const at::Tensor& rows, const std::int64_t* targets,
                std::optional<double> target_gradient) const {
    std::vector<double> losses(static_cast<std::size_t>(rows.size(0)), 0.0);
    at::parallel_for(0, rows.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        at::Tensor row = rows.narrow(0, i, 1);
        at::_log_softmax_out(row, row, -1, false);
        if (targets[i] != kIgnored) {
          losses[static_cast<std::size_t>(i)] = -element(row, targets[i]);
        }
        if (target_gradient) to_gradient(row, targets[i], *target_gradient);
      }
    });
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  }

 private:
  static double element(const at::Tensor& row, std::int64_t i) {
    return row.scalar_type() == at::kFloat ? static_cast<double>(row.const_data_ptr<float>()[i])
                                           : row.const_data_ptr<double>()[i];
  }

  static void set_element(const at::Tensor& row, std::int64_t i, double value) {
    if (row.scalar_type() == at::kFloat) {
      row.mutable_data_ptr<float>()[i] = static_cast<float>(value);
    } else {
      row.mutable_data_ptr<double>()[i] = value;
    }
  }

  void to_gradient(at::Tensor& row, std::int64_t target, double target_gradient) const {
    const at::Tensor one_hot = one_hot_.narrow(0, at::get_thread_num(), 1);
    if (target != kIgnored) set_element(one_hot, target, target_gradient);
    at::_log_softmax_backward_data_out(row, one_hot, row, -1, row.scalar_type());
    if (target != kIgnored) set_element(one_hot, target, 0.0);
  }

  std::int64_t vocabulary_;
  at::Tensor padded_;
  at::Tensor one_hot_;  // a row for each thread; zero between uses
};

struct HeadResult {
  at::Tensor loss;
  at::Tensor hidden_gradient;  // undefined when nothing asks for it
};

HeadResult run_chunks(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                      double loss_denominator, std::int64_t chunk_tokens, bool hidden_gradient,
                      bool weight_gradient) {
  const at::NoGradGuard no_grad;
  const std::int64_t tokens = hidden.size(0);
  const std::int64_t chunk = std::min(chunk_tokens, tokens);
  const ChunkBuffer buffer(chunk, weight.size(0), hidden.options());
  std::optional<double> target_gradient;
  if (hidden_gradient || weight_gradient) target_gradient = -1.0 / loss_denominator;
  HeadResult result;
  if (hidden_gradient) result.hidden_gradient = at::empty_like(hidden);

  double sum = 0.0;
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, tokens - first);
    const at::Tensor inputs = hidden.narrow(0, first, count);
    at::Tensor logits = buffer.rows(count);
    at::mm_out(logits, inputs, weight.t());
    sum += buffer.finish(logits, targets.const_data_ptr<std::int64_t>() + first, target_gradient);
    if (hidden_gradient) {
      at::Tensor rows = result.hidden_gradient.narrow(0, first, count);
      at::mm_out(rows, logits, weight);
    }
    if (weight_gradient) detail::gradient_accumulator(weight).addmm_(logits.t(), inputs);
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
    const double seed = gradients[0].item<double>();
    if (seed != 1.0) {
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
