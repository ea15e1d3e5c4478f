#include <cmath>
#include <string>

#include "hydra/core/error.h"
#include "optim/kernels.h"

namespace hydra {
namespace {

/// The step's numbers, computed in double and rounded once.
struct Scalars {
  float keep;  ///< 1 - learning_rate * weight_decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_correction2;  ///< sqrt(1 - beta2^step)
  float step_size;         ///< learning_rate / (1 - beta1^step)
  float epsilon;
  float gradient_factor;
};

HYDRA_VECTORISED void adamw_pass(float* __restrict parameter, const float* __restrict gradient,
                                 float* __restrict first, float* __restrict second,
                                 std::int64_t elements, Scalars s) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const float g = gradient[i] * s.gradient_factor;
    const float m = s.beta1 * first[i] + s.one_minus_beta1 * g;
    const float v = s.beta2 * second[i] + s.one_minus_beta2 * (g * g);
    const float denominator = std::sqrt(v) / s.root_correction2 + s.epsilon;
    first[i] = m;
    second[i] = v;
    parameter[i] = parameter[i] * s.keep - s.step_size * (m / denominator);
  }
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}

  int state_slots() const noexcept override { return 2; }
  double weight_decay() const noexcept override { return options_.weight_decay; }

  void update(const ParameterUpdate& u) const noexcept override {
    const auto step = static_cast<double>(u.step);
    Scalars s;
    s.keep = static_cast<float>(1.0 - u.learning_rate * u.weight_decay);
    s.beta1 = static_cast<float>(options_.beta1);
    s.one_minus_beta1 = static_cast<float>(1.0 - options_.beta1);
    s.beta2 = static_cast<float>(options_.beta2);
    s.one_minus_beta2 = static_cast<float>(1.0 - options_.beta2);
    s.root_correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(options_.beta2, step)));
    s.step_size = static_cast<float>(u.learning_rate / (1.0 - std::pow(options_.beta1, step)));
    s.epsilon = static_cast<float>(options_.epsilon);
    s.gradient_factor = u.gradient_factor;
    const FlushDenormals flush;
    adamw_pass(u.parameter, u.gradient, u.state0, u.state1, u.elements, s);
  }

 private:
  AdamWOptions options_;
};

void require(bool holds, const std::string& name, double value, const char* range) {
  if (!holds) {
    throw InvalidArgument("AdamW's " + name + " is " + std::to_string(value) + ", must be " +
                          range);
  }
}

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& options) {
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "in [0, 1)");
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "in [0, 1)");
  require(std::isfinite(options.epsilon) && options.epsilon >= 0, "epsilon", options.epsilon,
          "0 or more");
  require(std::isfinite(options.weight_decay) && options.weight_decay >= 0, "weight_decay",
          options.weight_decay, "0 or more");
  return std::make_unique<AdamW>(options);
}

}  // namespace hydra
