#include "hydra/models/dropout.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "cpu_float.h"
#include "dropout_mask.h"
#include "dropout_seed.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

using detail::DropoutMask;

at::Tensor masked(const at::Tensor& tensor, std::int64_t seed, double probability) {
  const at::Tensor input = tensor.contiguous();
  at::Tensor output = at::empty_like(input);
  const DropoutMask mask(static_cast<std::uint64_t>(seed), probability);
  const std::int64_t elements = input.numel();
  const std::int64_t streams =
      (elements + DropoutMask::kStreamElements - 1) / DropoutMask::kStreamElements;
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "dropout", [&] {
    const auto* from = input.const_data_ptr<scalar_t>();
    auto* to = output.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, streams, 8, [&](std::int64_t begin, std::int64_t end) {
      mask.apply(to, from, begin * DropoutMask::kStreamElements,
                 std::min(elements, end * DropoutMask::kStreamElements));
    });
  });
  return output;
}

class DropoutFunction final : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* saved, const at::Tensor& input,
                            std::int64_t seed, double probability) {
    saved->saved_data["seed"] = seed;
    saved->saved_data["probability"] = probability;
    return masked(input, seed, probability);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* saved,
                                                 torch::autograd::variable_list gradients) {
    return {masked(gradients[0], saved->saved_data["seed"].toInt(),
                   saved->saved_data["probability"].toDouble()),
            {},
            {}};
  }
};

}  // namespace

namespace detail {

void check_dropout_probability(double probability) {
  if (!(probability >= 0.0 && probability < 1.0)) {
    throw InvalidArgument("dropout probability is " + std::to_string(probability) +
                          ": give one from 0 up to, not including, 1");
  }
}

std::uint64_t draw_dropout_seed(LayerContext& context) {
  at::Generator generator = context.generator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

}  // namespace detail

at::Tensor dropout(const at::Tensor& input, double probability, LayerContext& context) {
  detail::check_dropout_probability(probability);
  if (!context.training() || probability == 0.0) return input;
  detail::require_cpu_float(input, "dropout");
  return DropoutFunction::apply(
      input, static_cast<std::int64_t>(detail::draw_dropout_seed(context)), probability);
}

Tensors DropoutLayer::forward(const Tensors& inputs, LayerContext& context) {
  Tensors outputs;
  outputs.reserve(inputs.size());
  for (const at::Tensor& input : inputs) outputs.push_back(dropout(input, probability_, context));
  return outputs;
}

}  // namespace hydra
