#include <cstddef>
#include <string>

#include "hydra/core/error.h"
#include "hydra/core/sha256.h"
#include "hydra/model/schema.h"
#include "hydra/testing/plain_loop.h"

namespace hydra::testing {
namespace {

at::Tensor find(const Weights& weights, const std::string& name) {
  for (const auto& [given, value] : weights) {
    if (given == name) return value.contiguous();
  }
  throw InvalidArgument("the weights have no \"" + name + "\": give all parameters of the model");
}

}  // namespace

std::string fingerprint(const Weights& weights, const Model& model) {
  Sha256 hash;
  for (const auto& layer : describe_model(model).layers) {
    for (const auto& parameter : layer.parameters) {
      if (parameter.tie && parameter.tie_use > 0) continue;
      const at::Tensor value = find(weights, parameter.full_name);
      hash.update({static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()});
    }
  }
  return hash.hex_digest();
}

}  // namespace hydra::testing
