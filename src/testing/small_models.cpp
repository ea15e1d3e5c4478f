#include "hydra/testing/small_models.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/linear.h>

#include <limits>
#include <stdexcept>

#include "hydra/core/error.h"
#include "hydra/model/layer.h"
#include "hydra/models/conv_net.h"
#include "hydra/models/dropout.h"
#include "hydra/models/mlp.h"
#include "hydra/testing/random_data.h"

namespace hydra::testing {
namespace {

constexpr std::int64_t kIn = 8;
constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kOut = 4;

// Passes a stream on, and beside it what the next layer adds to it.
class Split final : public Layer {
 public:
  Split() : linear_(register_module("linear", torch::nn::Linear(kIn, kWidth))) {}
  Tensors forward(const Tensors& inputs, LayerContext&) override {
    const at::Tensor stream = linear_->forward(inputs.at(0));
    return {stream, at::tanh(stream)};
  }

 private:
  torch::nn::Linear linear_;
};

class Mix final : public Layer {
 public:
  Mix() : linear_(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    const at::Tensor stream = inputs.at(0) + inputs.at(1);
    return {stream, dropout(at::tanh(linear_->forward(stream)), 0.1, context)};
  }

 private:
  torch::nn::Linear linear_;
};

class Join final : public Layer {
 public:
  Join() : linear_(register_module("linear", torch::nn::Linear(kWidth, kOut))) {}
  Tensors forward(const Tensors& inputs, LayerContext&) override {
    return {linear_->forward(inputs.at(0) + inputs.at(1))};
  }

 private:
  torch::nn::Linear linear_;
};

class SquaredError final : public Layer {
 public:
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    const at::Tensor difference = inputs.at(0) - context.side("targets");
    return {(difference * difference).sum() / context.loss_denominator()};
  }
};

class Hidden final : public Layer {
 public:
  Hidden() : linear_(register_module("linear", torch::nn::Linear(kIn, kWidth))) {}
  Tensors forward(const Tensors& inputs, LayerContext&) override {
    return {at::tanh(linear_->forward(inputs.at(0)))};
  }

 private:
  torch::nn::Linear linear_;
};

class Output final : public Layer {
 public:
  Output() : linear_(register_module("linear", torch::nn::Linear(kWidth, kOut))) {}
  Tensors forward(const Tensors& inputs, LayerContext&) override {
    return {linear_->forward(inputs.at(0))};
  }

 private:
  torch::nn::Linear linear_;
};

class Branch final : public Layer {
 public:
  Branch()
      : always_(register_module("always", torch::nn::Linear(kWidth, kWidth))),
        odd_(register_parameter("odd", torch::full({kWidth}, 0.1F))) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    const at::Tensor hidden = at::tanh(always_->forward(inputs.at(0)));
    return {context.step() % 2 == 1 ? hidden : hidden + odd_};
  }

 private:
  torch::nn::Linear always_;
  at::Tensor odd_;
};

class Fault final : public Layer {
 public:
  explicit Fault(std::int64_t step) : step_(step) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    if (context.training() && context.step() == step_) throw std::runtime_error("planted fault");
    return inputs;
  }

 private:
  std::int64_t step_;
};

class Hook final : public Layer {
 public:
  explicit Hook(std::function<void(LayerContext&)> hook) : hook_(std::move(hook)) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    if (context.training()) hook_(context);
    return inputs;
  }

 private:
  std::function<void(LayerContext&)> hook_;
};

class NanLoss final : public Layer {
 public:
  explicit NanLoss(std::int64_t step) : step_(step) {}
  Tensors forward(const Tensors& inputs, LayerContext& context) override {
    const at::Tensor difference = inputs.at(0) - context.side("targets");
    const at::Tensor loss = (difference * difference).sum() / context.loss_denominator();
    if (context.step() != step_) return {loss};
    return {loss * std::numeric_limits<double>::quiet_NaN()};
  }

 private:
  std::int64_t step_;
};

std::shared_ptr<Model> with_middle_and_loss(const std::string& name, const std::string& middle_name,
                                            LayerFactory middle, LayerFactory loss) {
  auto model = std::make_shared<Model>(name);
  model->add("hidden", layer<Hidden>());
  model->add(middle_name, std::move(middle));
  model->add("output", layer<Output>());
  model->add("loss", std::move(loss));
  return model;
}

std::shared_ptr<DataSource> regression(std::uint64_t seed) {
  RandomRegression::Options options;
  options.seed = seed;
  return std::make_shared<RandomRegression>(options);
}

}  // namespace

Gpt2Options tiny_gpt2_options() {
  Gpt2Options options;
  options.layers = 2;
  options.width = 16;
  options.heads = 2;
  options.context = 8;
  options.vocabulary_size = 64;
  options.head_chunk_tokens = 8;
  return options;
}

std::shared_ptr<Model> tiny_mlp() {
  MlpOptions options;
  options.widths = {kIn, kWidth, kWidth, kOut};
  options.dropout = 0.1;
  return make_mlp(options);
}

std::shared_ptr<Model> tiny_conv_net() { return make_conv_net({}); }

std::shared_ptr<Model> two_tensor_model() {
  auto model = std::make_shared<Model>("two_tensor");
  model->add("split", layer<Split>());
  for (int i = 0; i < 3; ++i) model->add("mix" + std::to_string(i), layer<Mix>());
  model->add("join", layer<Join>());
  model->add("loss", layer<SquaredError>());
  return model;
}

std::shared_ptr<Model> unused_branch_model() {
  return with_middle_and_loss("unused_branch", "branch", layer<Branch>(), layer<SquaredError>());
}

std::shared_ptr<Model> throwing_model(std::int64_t step) {
  return with_middle_and_loss("throwing", "fault", layer<Fault>(step), layer<SquaredError>());
}

std::shared_ptr<Model> hooked_model(std::function<void(LayerContext& context)> hook) {
  return with_middle_and_loss("hooked", "hook", layer<Hook>(std::move(hook)),
                              layer<SquaredError>());
}

std::shared_ptr<Model> nan_model(std::int64_t step) {
  return with_middle_and_loss("nan", "branch", layer<Branch>(), layer<NanLoss>(step));
}

const std::vector<std::string>& small_job_names() {
  static const std::vector<std::string> names{"gpt2", "mlp", "conv_net", "two_tensor",
                                              "unused_branch"};
  return names;
}

JobOptions small_job(const std::string& name, std::uint64_t seed, std::int64_t max_steps) {
  JobOptions job;
  job.name = name;
  job.seed = seed;
  job.max_steps = max_steps;
  job.micro_batch_size = 2;
  job.data = regression(seed);
  if (name == "gpt2") {
    job.model = make_gpt2(tiny_gpt2_options());
    RandomTokens::Options data;
    data.seed = seed;
    job.data = std::make_shared<RandomTokens>(data);
  } else if (name == "mlp") {
    job.model = tiny_mlp();
  } else if (name == "conv_net") {
    job.model = tiny_conv_net();
    RandomImages::Options data;
    data.seed = seed;
    job.data = std::make_shared<RandomImages>(data);
  } else if (name == "two_tensor") {
    job.model = two_tensor_model();
  } else if (name == "unused_branch") {
    job.model = unused_branch_model();
  } else {
    throw InvalidArgument("no small job is called \"" + name + "\": see small_job_names()");
  }
  return job;
}

}  // namespace hydra::testing
