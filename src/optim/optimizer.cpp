#include "hydra/optim/optimizer.h"

#include "optim/kernels.h"

namespace hydra {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  if (const auto* adamw = std::get_if<AdamWOptions>(&options)) return make_adamw(*adamw);
  return make_sgd(std::get<SgdOptions>(options));
}

}  // namespace hydra
