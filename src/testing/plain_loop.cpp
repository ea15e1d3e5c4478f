#include "hydra/testing/plain_loop.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "hydra/core/error.h"
#include "hydra/data/batch.h"
#include "hydra/model/layer.h"
#include "hydra/model/schema.h"

namespace hydra::testing {
namespace {

// A parameter with its uses: one for an ordinary parameter, several when it is tied.
struct Trained {
  std::string name;
  std::vector<at::Tensor> uses;  // leaves that share the first one's data, each with its gradient
  at::Tensor state0, state1;
  ParameterGroup group;
  std::int64_t updates = 0;
  at::Tensor gradient;  // of this step, over all uses; undefined when none was reached
};

float* data_of(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

Trained make_trained(const std::string& name, const at::Tensor& leaf, const JobOptions& options) {
  Trained trained;
  trained.name = name;
  trained.uses = {leaf};
  trained.state0 = at::zeros_like(leaf.detach());
  trained.state1 = at::zeros_like(leaf.detach());
  trained.group = group_of(options.groups, name);
  return trained;
}

class PlainLoop {
 public:
  explicit PlainLoop(const JobOptions& options)
      : options_(options), optimizer_(make_optimizer(options.optimizer)) {
    edits_gradients_ = options.callbacks != nullptr && options.callbacks->edits_gradients();
    const ModelSchema schema = describe_model(*options.model);
    std::map<std::int64_t, std::size_t> tied;
    for (std::size_t i = 0; i < schema.layers.size(); ++i) {
      layers_.push_back(make_layer(*options.model, static_cast<std::int64_t>(i), options.seed));
      layers_.back()->train();
      std::size_t p = 0;
      for (at::Tensor leaf : layers_.back()->parameters()) {
        const auto& description = schema.layers[i].parameters.at(p++);
        leaf.requires_grad_(!description.frozen);
        if (description.tie && description.tie_use > 0) {
          Trained& owner = parameters_[tied.at(*description.tie)];
          leaf.set_data(owner.uses[0].detach());
          owner.uses.push_back(leaf);
          continue;
        }
        if (description.tie) tied[*description.tie] = parameters_.size();
        keep_weight(description.full_name, leaf.detach());
        parameters_.push_back(make_trained(description.full_name, leaf, options));
      }
      std::size_t b = 0;
      for (const at::Tensor& buffer : layers_.back()->buffers()) {
        keep_weight(schema.layers[i].buffers.at(b++).full_name, buffer);
      }
    }
  }

  PlainResult run() && {
    for (std::int64_t step = 0; step < options_.max_steps && !decision_.stop; ++step) {
      const Batch batch = options_.data->batch(step);
      const double rate = rate_.value_or(options_.schedule.at(step));
      StepMetrics metrics{step, forward_backward(batch, step), rate, 0, batch.tokens};
      for (Trained& parameter : parameters_) combine_uses(parameter);
      if (edits_gradients_) options_.callbacks->on_gradients(step, gradients());
      if (edits_gradients_ || options_.max_gradient_norm) metrics.gradient_norm = norm(step);
      const auto& limit = options_.max_gradient_norm;
      const float factor = limit ? clip_factor(metrics.gradient_norm, *limit) : 1.0F;
      for (Trained& parameter : parameters_) update(parameter, rate, factor);
      result_.losses.push_back(metrics.loss);
      result_.gradient_norms.push_back(metrics.gradient_norm);
      if (options_.callbacks != nullptr) follow(options_.callbacks->on_step(metrics));
    }
    return std::move(result_);
  }

 private:
  void keep_weight(const std::string& name, const at::Tensor& value) {
    if (options_.initial_weights) {
      for (const auto& [given, tensor] : *options_.initial_weights) {
        if (given == name) value.copy_(tensor);
      }
    }
    result_.weights.emplace_back(name, value);
  }

  double forward_backward(const Batch& batch, std::int64_t step) {
    const std::int64_t size =
        options_.micro_batch_size > 0 ? options_.micro_batch_size : batch.rows;
    double loss = 0.0;
    for (std::int64_t begin = 0, index = 0; begin < batch.rows; begin += size, ++index) {
      const Batch rows = rows_of(batch, begin, std::min(batch.rows, begin + size));
      Tensors tensors = rows.inputs;
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        LayerContext context({options_.seed, step, index, static_cast<std::int64_t>(i)},
                             Mode::kTrain, batch.loss_denominator, rows.side);
        tensors = layers_[i]->forward(tensors, context);
      }
      if (tensors.at(0).requires_grad()) tensors[0].backward();
      loss += static_cast<double>(tensors[0].item<float>());
    }
    require_finite(loss, "loss", step);
    return loss;
  }

  // Adds up the uses that the backward passes have reached, in their order, onto zeros.
  static void combine_uses(Trained& parameter) {
    parameter.gradient.reset();
    for (at::Tensor& use : parameter.uses) {
      if (!use.grad().defined()) continue;
      if (!parameter.gradient.defined()) parameter.gradient = at::zeros_like(use.detach());
      parameter.gradient.add_(use.grad());
      use.mutable_grad().reset();
    }
  }

  Gradients gradients() const {
    Gradients gradients;
    for (const Trained& parameter : parameters_) {
      if (parameter.gradient.defined()) gradients.emplace_back(parameter.name, parameter.gradient);
    }
    return gradients;
  }

  void follow(const StepDecision& decision) {
    decision_ = decision;
    if (decision.follow_schedule || decision.learning_rate) rate_ = decision.learning_rate;
  }

  double norm(std::int64_t step) const {
    double squares = 0.0;
    for (const Trained& parameter : parameters_) {
      if (!parameter.gradient.defined()) continue;
      squares += square_sum(data_of(parameter.gradient), parameter.gradient.numel());
    }
    require_finite(std::sqrt(squares), "gradient norm", step);
    return std::sqrt(squares);
  }

  void update(Trained& parameter, double rate, float gradient_factor) const {
    if (!parameter.gradient.defined()) return;
    optimizer_->update(
        {.parameter = data_of(parameter.uses[0].detach()),
         .gradient = data_of(parameter.gradient),
         .state0 = data_of(parameter.state0),
         .state1 = data_of(parameter.state1),
         .elements = parameter.uses[0].numel(),
         .step = ++parameter.updates,
         .learning_rate = rate * parameter.group.learning_rate_scale,
         .weight_decay = parameter.group.weight_decay.value_or(optimizer_->weight_decay()),
         .gradient_factor = gradient_factor});
  }

  static void require_finite(double value, const char* what, std::int64_t step) {
    if (std::isfinite(value)) return;
    throw NonFinite(std::string("the ") + what + " of step " + std::to_string(step) + " is " +
                    std::to_string(value));
  }

  const JobOptions& options_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::shared_ptr<Layer>> layers_;
  std::vector<Trained> parameters_;  // in model order, a tied one at its owner's place
  bool edits_gradients_ = false;
  std::optional<double> rate_;  // set by a callback
  StepDecision decision_;
  PlainResult result_;
};

}  // namespace

PlainResult plain_loop(const JobOptions& options) { return PlainLoop(options).run(); }

}  // namespace hydra::testing
