#include <cmath>
#include <string>

#include "hydra/core/error.h"
#include "optim/kernels.h"

namespace hydra {
namespace {

struct Scalars {
  float learning_rate;
  float weight_decay;
  float momentum;
  float gradient_factor;
};

HYDRA_VECTORISED void plain_pass(float* __restrict parameter, const float* __restrict gradient,
                                 std::int64_t elements, Scalars s) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const float g = gradient[i] * s.gradient_factor + s.weight_decay * parameter[i];
    parameter[i] = parameter[i] - s.learning_rate * g;
  }
}

HYDRA_VECTORISED void momentum_pass(float* __restrict parameter, const float* __restrict gradient,
                                    float* __restrict momentum, std::int64_t elements, Scalars s) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const float g = gradient[i] * s.gradient_factor + s.weight_decay * parameter[i];
    const float b = s.momentum * momentum[i] + g;
    momentum[i] = b;
    parameter[i] = parameter[i] - s.learning_rate * b;
  }
}

HYDRA_VECTORISED void nesterov_pass(float* __restrict parameter, const float* __restrict gradient,
                                    float* __restrict momentum, std::int64_t elements, Scalars s) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const float g = gradient[i] * s.gradient_factor + s.weight_decay * parameter[i];
    const float b = s.momentum * momentum[i] + g;
    momentum[i] = b;
    parameter[i] = parameter[i] - s.learning_rate * (g + s.momentum * b);
  }
}

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {}

  int state_slots() const noexcept override { return options_.momentum > 0 ? 1 : 0; }
  double weight_decay() const noexcept override { return options_.weight_decay; }

  void update(const ParameterUpdate& u) const noexcept override {
    const Scalars s{static_cast<float>(u.learning_rate), static_cast<float>(u.weight_decay),
                    static_cast<float>(options_.momentum), u.gradient_factor};
    const FlushDenormals flush;
    if (options_.momentum <= 0) {
      plain_pass(u.parameter, u.gradient, u.elements, s);
    } else if (options_.nesterov) {
      nesterov_pass(u.parameter, u.gradient, u.state0, u.elements, s);
    } else {
      momentum_pass(u.parameter, u.gradient, u.state0, u.elements, s);
    }
  }

 private:
  SgdOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const SgdOptions& options) {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw InvalidArgument("SGD's " + what);
  };
  require(options.momentum >= 0 && options.momentum < 1,
          "momentum is " + std::to_string(options.momentum) + ", must be in [0, 1)");
  require(std::isfinite(options.weight_decay) && options.weight_decay >= 0,
          "weight_decay is " + std::to_string(options.weight_decay) + ", must be 0 or more");
  require(!options.nesterov || options.momentum > 0, "nesterov needs a positive momentum");
  return std::make_unique<Sgd>(options);
}

}  // namespace hydra
