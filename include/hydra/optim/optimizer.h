#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace hydra {

/// AdamW: Adam with decoupled weight decay.
/// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2; the
/// learning rate multiplies the decay as in PyTorch. Bias corrections are computed in double.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

/// Stochastic gradient descent with momentum and (coupled) weight decay, as PyTorch defines them.
struct SgdOptions {
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};

using OptimizerOptions = std::variant<AdamWOptions, SgdOptions>;

/// Settings for the parameters whose full name ("layer.parameter") matches `pattern` (* and ?).
/// The first matching group of a job's list wins; a parameter that matches none has the defaults.
struct ParameterGroup {
  std::string pattern{};
  double learning_rate_scale = 1.0;      ///< multiplies the schedule's rate
  std::optional<double> weight_decay{};  ///< replaces the optimizer's
};

/// Returns the group that a parameter belongs to: the first that matches, or the defaults.
ParameterGroup group_of(const std::vector<ParameterGroup>& groups, std::string_view full_name);

/// One parameter's update. All pointers are to `elements` floats.
struct ParameterUpdate {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* state0 = nullptr;  ///< AdamW: first moment; SGD: momentum buffer; zero before step 1
  float* state1 = nullptr;  ///< AdamW: second moment
  std::int64_t elements = 0;
  std::int64_t step = 1;  ///< how many updates this parameter has had, this one included
  double learning_rate = 0;
  double weight_decay = 0;
  float gradient_factor = 1.0F;  ///< multiplies the gradient first (clipping); 1 leaves the bits
};

/// Element-wise update rules on flat fp32 memory.
///
/// The result for an element depends on its own values and the numbers above alone: not on where
/// it lies, on how a buffer is cut, nor on the instruction set. Numbers below the smallest normal
/// one (1.2e-38) count as zero and become zero, so that moments that fade cost what others cost.
/// Thread safety: immutable; updates of disjoint memory may run at once.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// How many floats of state each parameter element has (0 to 2).
  virtual int state_slots() const noexcept = 0;
  virtual double weight_decay() const noexcept = 0;
  virtual void update(const ParameterUpdate& update) const noexcept = 0;
};

/// Errors: InvalidArgument for options out of range.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options);

/// Returns the sum of squares in double. The order of summation is a function of `elements` alone.
double square_sum(const float* values, std::int64_t elements) noexcept;

/// Adds `source` to `target` element by element.
void add_into(float* target, const float* source, std::int64_t elements) noexcept;

/// Returns the factor that brings a gradient of global norm `norm` to at most `max_norm`, as
/// torch.nn.utils.clip_grad_norm_ does: min(1, max_norm / (norm + 1e-6)), computed in double and
/// rounded to fp32 once. NaN where either number is NaN or both are infinite.
float clip_factor(double norm, double max_norm) noexcept;

}  // namespace hydra
