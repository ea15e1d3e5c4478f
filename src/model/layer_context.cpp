#include "hydra/model/layer_context.h"

#include <ATen/CPUGeneratorImpl.h>

#include "hydra/core/error.h"
#include "hydra/core/random.h"

namespace hydra {

bool LayerContext::has_side(std::string_view name) const noexcept {
  for (const auto& [known, tensor] : side_) {
    if (known == name) return true;
  }
  return false;
}

const at::Tensor& LayerContext::side(std::string_view name) const {
  std::string names;
  for (const auto& [known, tensor] : side_) {
    if (known == name) return tensor;
    names += (names.empty() ? "" : ", ") + known;
  }
  throw InvalidArgument("there is no side input \"" + std::string(name) +
                        "\"; the batch has: " + (names.empty() ? "none" : names));
}

at::Generator& LayerContext::generator() {
  if (!generator_) {
    generator_ = at::detail::createCPUGenerator(
        mix_seed(identity_.job_seed, {static_cast<std::uint64_t>(identity_.step),
                                      static_cast<std::uint64_t>(identity_.micro_batch),
                                      static_cast<std::uint64_t>(identity_.layer_use)}));
  }
  return *generator_;
}

void detail::require_one_input(std::size_t count, const std::string& module_name) {
  if (count == 1) return;
  throw InvalidArgument("an adapted module takes one tensor, " + module_name + " was given " +
                        std::to_string(count) + ": derive from hydra::Layer to take several");
}

}  // namespace hydra
