#include "hydra/optim/optimizer.h"

#include <algorithm>

#include "hydra/core/glob.h"
#include "optim/kernels.h"

namespace hydra {

ParameterGroup group_of(const std::vector<ParameterGroup>& groups, std::string_view full_name) {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& group) {
    return glob_match(group.pattern, full_name);
  });
  return found == groups.end() ? ParameterGroup{} : *found;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  if (const auto* adamw = std::get_if<AdamWOptions>(&options)) return make_adamw(*adamw);
  return make_sgd(std::get<SgdOptions>(options));
}

}  // namespace hydra
