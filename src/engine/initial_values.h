#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "hydra/engine/job_options.h"
#include "hydra/model/schema.h"

namespace hydra {

/// The values that a user gave in place of the factories'.
///
/// Lifetime: borrows the weights. Thread safety: immutable.
class InitialValues {
 public:
  /// `given` may be null. A tied parameter may be given under the name of any of its uses.
  /// Errors: InvalidArgument for a name that the model does not have, another shape or type than
  /// the model's, or two values for one parameter.
  InitialValues(const Weights* given, const ModelSchema& schema);

  /// Writes the value of a parameter (of a tied one: by its owner's name) or buffer, if there is
  /// one.
  void apply(const std::string& full_name, std::byte* target) const;

 private:
  struct Known {
    const std::string* name = nullptr;  ///< of the owner, where it is tied
    const std::vector<std::int64_t>* shape = nullptr;
    c10::ScalarType type = c10::ScalarType::Float;
  };
  static std::map<std::string, Known> known_names(const ModelSchema& schema);

  std::map<std::string, const at::Tensor*> given_;
};

}  // namespace hydra
