#include "hydra/models/causal_attention.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cpu_float.h"
#include "dropout_mask.h"
#include "dropout_seed.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

// Rows of probabilities that exist at once. At 512 tokens a block is 256 KiB and stays in the
// cache.
constexpr std::int64_t kBlockRows = 128;

struct AttentionNumbers {
  std::int64_t heads = 1;
  double probability = 0.0;
  std::int64_t seed = 0;
};

// One head of one sequence: strided views, nothing is copied.
struct Head {
  at::Tensor query, key, value;  // [T, C / H]
};

Head head_of(const at::Tensor& qkv, std::int64_t sequence, std::int64_t head, std::int64_t heads) {
  const std::int64_t channels = qkv.size(2) / 3;
  const std::int64_t head_channels = channels / heads;
  const at::Tensor rows = qkv.select(0, sequence);
  const auto part = [&](std::int64_t which) {
    return rows.narrow(1, which * channels + head * head_channels, head_channels);
  };
  return {part(0), part(1), part(2)};
}

// The probabilities' block of rows [begin, end) of one head; columns end where the rows do, so that
// about half of the square is never computed.
class RowBlocks {
 public:
  RowBlocks(const at::Tensor& qkv, const AttentionNumbers& numbers)
      : tokens_(qkv.size(1)),
        scale_(1.0 / std::sqrt(static_cast<double>(qkv.size(2) / 3 / numbers.heads))),
        drops_(numbers.probability > 0.0),
        mask_(static_cast<std::uint64_t>(numbers.seed), numbers.probability),
        options_(qkv.options()) {}

  std::int64_t count() const { return (tokens_ + kBlockRows - 1) / kBlockRows; }
  std::int64_t begin(std::int64_t block) const { return block * kBlockRows; }
  std::int64_t end(std::int64_t block) const { return std::min(tokens_, (block + 1) * kBlockRows); }
  double scale() const { return scale_; }

  at::Tensor workspace() const {
    return at::empty({std::min(tokens_, kBlockRows) * tokens_}, options_);
  }
  at::Tensor shaped(const at::Tensor& workspace, std::int64_t block) const {
    const std::int64_t rows = end(block) - begin(block);
    return workspace.narrow(0, 0, rows * end(block)).view({rows, end(block)});
  }

  void compute_probabilities(at::Tensor& result, const Head& head, std::int64_t block) const {
    const at::Tensor query = head.query.slice(0, begin(block), end(block));
    const at::Tensor key = head.key.slice(0, 0, end(block));
    at::addmm_out(result, result, query, key.t(), 0.0, scale_);
    hide_future(result, begin(block));
    at::_softmax_out(result, result, -1, false);
  }

  // Drops out in place or from one block to another; `head_index` counts over sequences and heads.
  void drop(at::Tensor& output, const at::Tensor& input, std::int64_t head_index,
            std::int64_t block) const {
    const std::int64_t columns = input.size(1);
    AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "causal_attention", [&] {
      for (std::int64_t row = 0; row < input.size(0); ++row) {
        mask_.apply_stream(output.mutable_data_ptr<scalar_t>() + row * columns,
                           input.const_data_ptr<scalar_t>() + row * columns, columns,
                           static_cast<std::uint64_t>(head_index * tokens_ + begin(block) + row));
      }
    });
  }
  bool drops() const { return drops_; }

 private:
  static void hide_future(at::Tensor& scores, std::int64_t first_row) {
    const std::int64_t columns = scores.size(1);
    AT_DISPATCH_FLOATING_TYPES(scores.scalar_type(), "causal_attention", [&] {
      auto* row = scores.mutable_data_ptr<scalar_t>();
      for (std::int64_t i = 0; i < scores.size(0); ++i, row += columns) {
        std::fill(row + first_row + i + 1, row + columns,
                  -std::numeric_limits<scalar_t>::infinity());
      }
    });
  }

  std::int64_t tokens_;
  double scale_;
  bool drops_;
  detail::DropoutMask mask_;
  at::TensorOptions options_;
};

at::Tensor attend(const at::Tensor& qkv, const AttentionNumbers& numbers) {
  const std::int64_t channels = qkv.size(2) / 3;
  const std::int64_t head_channels = channels / numbers.heads;
  at::Tensor output = at::empty({qkv.size(0), qkv.size(1), channels}, qkv.options());
  const RowBlocks blocks(qkv, numbers);
  const at::Tensor workspace = blocks.workspace();
  for (std::int64_t index = 0; index < qkv.size(0) * numbers.heads; ++index) {
    const std::int64_t sequence = index / numbers.heads;
    const std::int64_t h = index % numbers.heads;
    const Head head = head_of(qkv, sequence, h, numbers.heads);
    const at::Tensor result =
        output.select(0, sequence).narrow(1, h * head_channels, head_channels);
    for (std::int64_t block = 0; block < blocks.count(); ++block) {
      at::Tensor probabilities = blocks.shaped(workspace, block);
      blocks.compute_probabilities(probabilities, head, block);
      if (blocks.drops()) blocks.drop(probabilities, probabilities, index, block);
      at::Tensor rows = result.slice(0, blocks.begin(block), blocks.end(block));
      at::mm_out(rows, probabilities, head.value.slice(0, 0, blocks.end(block)));
    }
  }
  return output;
}

at::Tensor attend_backward(const at::Tensor& qkv, const at::Tensor& output_gradient,
                           const AttentionNumbers& numbers) {
  const std::int64_t head_channels = qkv.size(2) / 3 / numbers.heads;
  at::Tensor gradient = at::empty_like(qkv);
  const RowBlocks blocks(qkv, numbers);
  const at::Tensor probability_space = blocks.workspace();
  const at::Tensor gradient_space = blocks.workspace();
  for (std::int64_t index = 0; index < qkv.size(0) * numbers.heads; ++index) {
    const std::int64_t sequence = index / numbers.heads;
    const std::int64_t h = index % numbers.heads;
    const Head head = head_of(qkv, sequence, h, numbers.heads);
    const Head into = head_of(gradient, sequence, h, numbers.heads);
    const at::Tensor result_gradient =
        output_gradient.select(0, sequence).narrow(1, h * head_channels, head_channels);
    // The last block reaches all keys: it is first and overwrites, the others add.
    for (std::int64_t block = blocks.count() - 1; block >= 0; --block) {
      const double beta = block + 1 == blocks.count() ? 0.0 : 1.0;
      const std::int64_t begin = blocks.begin(block);
      const std::int64_t end = blocks.end(block);
      const at::Tensor rows_gradient = result_gradient.slice(0, begin, end);
      at::Tensor probabilities = blocks.shaped(probability_space, block);
      at::Tensor scores_gradient = blocks.shaped(gradient_space, block);

      blocks.compute_probabilities(probabilities, head, block);
      at::Tensor dropped = probabilities;
      if (blocks.drops()) {
        blocks.drop(scores_gradient, probabilities, index, block);
        dropped = scores_gradient;
      }
      into.value.slice(0, 0, end).addmm_(dropped.t(), rows_gradient, beta);

      at::mm_out(scores_gradient, rows_gradient, head.value.slice(0, 0, end).t());
      if (blocks.drops()) blocks.drop(scores_gradient, scores_gradient, index, block);
      at::_softmax_backward_data_out(scores_gradient, scores_gradient, probabilities, -1,
                                     qkv.scalar_type());
      into.query.slice(0, begin, end)
          .addmm_(scores_gradient, head.key.slice(0, 0, end), 0.0, blocks.scale());
      into.key.slice(0, 0, end).addmm_(scores_gradient.t(), head.query.slice(0, begin, end), beta,
                                       blocks.scale());
    }
  }
  return gradient;
}

class CausalAttentionFunction final : public torch::autograd::Function<CausalAttentionFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* saved, const at::Tensor& qkv,
                            std::int64_t heads, double probability, std::int64_t seed) {
    saved->save_for_backward({qkv});
    saved->saved_data["heads"] = heads;
    saved->saved_data["probability"] = probability;
    saved->saved_data["seed"] = seed;
    return attend(qkv, {heads, probability, seed});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* saved,
                                                 torch::autograd::variable_list gradients) {
    const AttentionNumbers numbers{saved->saved_data["heads"].toInt(),
                                   saved->saved_data["probability"].toDouble(),
                                   saved->saved_data["seed"].toInt()};
    const at::Tensor qkv = saved->get_saved_variables()[0];
    return {attend_backward(qkv, gradients[0].contiguous(), numbers), {}, {}, {}};
  }
};

}  // namespace

at::Tensor causal_attention(const at::Tensor& qkv, std::int64_t heads, double dropout_probability,
                            LayerContext& context) {
  detail::check_dropout_probability(dropout_probability);
  detail::require_cpu_float(qkv, "causal_attention");
  if (qkv.dim() != 3 || heads < 1 || qkv.size(2) % (3 * heads) != 0) {
    throw InvalidArgument("causal_attention was given " + std::to_string(qkv.dim()) +
                          " dimensions and " + std::to_string(heads) +
                          " heads: it takes [B, T, 3C] with C a multiple of the heads");
  }
  const bool drops = context.training() && dropout_probability > 0.0;
  const auto seed =
      drops ? static_cast<std::int64_t>(detail::draw_dropout_seed(context)) : std::int64_t{0};
  return CausalAttentionFunction::apply(qkv.contiguous(), heads, drops ? dropout_probability : 0.0,
                                        seed);
}

}  // namespace hydra
