#include "hydra/models/gpt2.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "dropout_seed.h"
#include "hydra/core/error.h"
#include "hydra/models/causal_attention.h"
#include "hydra/models/chunked_head.h"
#include "hydra/models/dropout.h"
#include "hydra/models/token_embedding.h"

namespace hydra {
namespace {

// B batch, T tokens, C width, V vocabulary.

at::Tensor normal(std::vector<std::int64_t> shape, double deviation) {
  return torch::nn::init::normal_(torch::empty(shape), 0.0, deviation);
}

// A linear layer whose weight lies as Hugging Face's Conv1D has it: [in, out].
class Projection final : public torch::nn::Module {
 public:
  Projection(std::int64_t in, std::int64_t out, double deviation)
      : weight_(register_parameter("weight", normal({in, out}, deviation))),
        bias_(register_parameter("bias", torch::zeros({out}))) {}

  at::Tensor forward(const at::Tensor& input) {
    std::vector<std::int64_t> shape = input.sizes().vec();
    const at::Tensor rows = input.reshape({-1, shape.back()});
    shape.back() = weight_.size(1);
    return at::addmm(bias_, rows, weight_).view(shape);
  }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

std::shared_ptr<torch::nn::LayerNormImpl> layer_norm(const Gpt2Options& options) {
  return std::make_shared<torch::nn::LayerNormImpl>(
      torch::nn::LayerNormOptions({options.width}).eps(options.epsilon));
}

double residual_deviation(const Gpt2Options& options) {
  return options.initializer_range / std::sqrt(2.0 * static_cast<double>(options.layers));
}

class Weight final : public torch::nn::Module {
 public:
  explicit Weight(at::Tensor value) : weight(register_parameter("weight", std::move(value))) {}
  at::Tensor weight;
};

class EmbeddingLayer final : public Layer {
 public:
  explicit EmbeddingLayer(const Gpt2Options& options)
      : dropout_(options.dropout),
        tokens_(register_module(
            "wte", std::make_shared<Weight>(normal({options.vocabulary_size, options.width},
                                                   options.initializer_range)))),
        positions_(
            register_module("wpe", std::make_shared<Weight>(normal({options.context, options.width},
                                                                   options.initializer_range)))) {}

  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    detail::require_one_input(inputs.size(), "gpt2 embedding");
    return {
        dropout(embed_tokens(inputs[0], tokens_->weight, positions_->weight), dropout_, context)};
  }

 private:
  double dropout_;
  std::shared_ptr<Weight> tokens_;
  std::shared_ptr<Weight> positions_;
};

class Attention final : public torch::nn::Module {
 public:
  explicit Attention(const Gpt2Options& options)
      : heads_(options.heads),
        dropout_(options.dropout),
        project_in_(
            register_module("c_attn", std::make_shared<Projection>(options.width, 3 * options.width,
                                                                   options.initializer_range))),
        project_out_(
            register_module("c_proj", std::make_shared<Projection>(options.width, options.width,
                                                                   residual_deviation(options)))) {}

  at::Tensor forward(const at::Tensor& input, LayerContext& context) {
    const at::Tensor mixed =
        causal_attention(project_in_->forward(input), heads_, dropout_, context);
    return dropout(project_out_->forward(mixed), dropout_, context);
  }

 private:
  std::int64_t heads_;
  double dropout_;
  std::shared_ptr<Projection> project_in_;
  std::shared_ptr<Projection> project_out_;
};

class FeedForward final : public torch::nn::Module {
 public:
  explicit FeedForward(const Gpt2Options& options)
      : dropout_(options.dropout),
        expand_(
            register_module("c_fc", std::make_shared<Projection>(options.width, 4 * options.width,
                                                                 options.initializer_range))),
        contract_(
            register_module("c_proj", std::make_shared<Projection>(4 * options.width, options.width,
                                                                   residual_deviation(options)))) {}

  at::Tensor forward(const at::Tensor& input, LayerContext& context) {
    const at::Tensor hidden = at::gelu(expand_->forward(input), "tanh");
    return dropout(contract_->forward(hidden), dropout_, context);
  }

 private:
  double dropout_;
  std::shared_ptr<Projection> expand_;
  std::shared_ptr<Projection> contract_;
};

class BlockLayer final : public Layer {
 public:
  explicit BlockLayer(const Gpt2Options& options)
      : attention_norm_(register_module("ln_1", layer_norm(options))),
        attention_(register_module("attn", std::make_shared<Attention>(options))),
        feed_forward_norm_(register_module("ln_2", layer_norm(options))),
        feed_forward_(register_module("mlp", std::make_shared<FeedForward>(options))) {}

  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    detail::require_one_input(inputs.size(), "gpt2 block");
    at::Tensor hidden = inputs[0];
    hidden = hidden + attention_->forward(attention_norm_->forward(hidden), context);
    hidden = hidden + feed_forward_->forward(feed_forward_norm_->forward(hidden), context);
    return {hidden};
  }

 private:
  std::shared_ptr<torch::nn::LayerNormImpl> attention_norm_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<torch::nn::LayerNormImpl> feed_forward_norm_;
  std::shared_ptr<FeedForward> feed_forward_;
};

class HeadLayer final : public Layer {
 public:
  explicit HeadLayer(const Gpt2Options& options)
      : chunk_tokens_(options.head_chunk_tokens),
        norm_(register_module("ln_f", layer_norm(options))),
        // Tied: the embedding's values are used, drawing others would be for nothing.
        weight_(
            register_parameter("weight", torch::zeros({options.vocabulary_size, options.width}))) {}

  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    detail::require_one_input(inputs.size(), "gpt2 head");
    const at::Tensor hidden = norm_->forward(inputs[0]);
    return {chunked_cross_entropy(hidden.reshape({-1, hidden.size(-1)}), weight_,
                                  context.side("targets"), context.loss_denominator(),
                                  chunk_tokens_)};
  }

 private:
  std::int64_t chunk_tokens_;
  std::shared_ptr<torch::nn::LayerNormImpl> norm_;
  at::Tensor weight_;
};

void require_positive(const char* option, std::int64_t value) {
  if (value < 1) {
    throw InvalidArgument(std::string("gpt2: ") + option + " is " + std::to_string(value) +
                          ": it must be at least 1");
  }
}

void validate(const Gpt2Options& options) {
  require_positive("layers", options.layers);
  require_positive("width", options.width);
  require_positive("heads", options.heads);
  require_positive("context", options.context);
  require_positive("vocabulary_size", options.vocabulary_size);
  require_positive("head_chunk_tokens", options.head_chunk_tokens);
  if (options.width % options.heads != 0) {
    throw InvalidArgument("gpt2: width " + std::to_string(options.width) +
                          " is no multiple of heads " + std::to_string(options.heads));
  }
  detail::check_dropout_probability(options.dropout);
  if (!(options.initializer_range > 0.0) || !std::isfinite(options.initializer_range)) {
    throw InvalidArgument("gpt2: initializer_range is " +
                          std::to_string(options.initializer_range) + ": it must be positive");
  }
  if (!(options.epsilon > 0.0) || !std::isfinite(options.epsilon)) {
    throw InvalidArgument("gpt2: epsilon is " + std::to_string(options.epsilon) +
                          ": it must be positive");
  }
}

struct PublishedSize {
  const char* name;
  const char* parameters;
  std::int64_t layers, width, heads;
};
constexpr PublishedSize kPublishedSizes[] = {{"gpt2", "124M", 12, 768, 12},
                                             {"gpt2-medium", "355M", 24, 1024, 16},
                                             {"gpt2-large", "774M", 36, 1280, 20},
                                             {"gpt2-xl", "1.5B", 48, 1600, 25}};

}  // namespace

Gpt2Options gpt2_size(std::string_view name) {
  std::string names;
  for (const PublishedSize& size : kPublishedSizes) {
    if (name == size.name || name == size.parameters) {
      Gpt2Options options;
      options.layers = size.layers;
      options.width = size.width;
      options.heads = size.heads;
      return options;
    }
    names += std::string(names.empty() ? "" : ", ") + size.name + " (" + size.parameters + ")";
  }
  throw InvalidArgument("no published GPT-2 is called \"" + std::string(name) + "\": there are " +
                        names);
}

std::shared_ptr<Model> make_gpt2(const Gpt2Options& options) {
  validate(options);
  auto model = std::make_shared<Model>("gpt2");
  model->add("embedding", layer<EmbeddingLayer>(options));
  for (std::int64_t block = 0; block < options.layers; ++block) {
    model->add("block" + std::to_string(block), layer<BlockLayer>(options));
  }
  model->add("head", layer<HeadLayer>(options));
  model->tie({"embedding.wte.weight", "head.weight"});
  return model;
}

}  // namespace hydra
