#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/model/model.h"

namespace hydra {

/// What is known of a model's parameters without its weights.
///
/// Made by building each layer once and looking at it (layers are dropped again, one at a time).
struct ModelSchema {
  struct Parameter {
    std::string name;       ///< within the layer
    std::string full_name;  ///< "layer.name"
    std::vector<std::int64_t> shape;
    std::int64_t elements = 0;
    bool frozen = false;
    std::optional<std::int64_t> tie;  ///< index into `ties`
    std::int64_t tie_use = 0;         ///< which use of the tied parameter this is
  };
  struct Buffer {
    std::string name;
    std::string full_name;
    std::vector<std::int64_t> shape;
    c10::ScalarType type = c10::ScalarType::Float;
    std::int64_t elements = 0;
    Bytes bytes;
  };
  struct Layer {
    std::string name;
    std::vector<Parameter> parameters;
    std::vector<Buffer> buffers;
  };
  struct Tie {
    std::string full_name;  ///< of the owner
    std::int64_t elements = 0;
    std::vector<std::int64_t> shape;
    bool frozen = false;
    std::int64_t uses = 0;
    std::vector<std::int64_t> layers;  ///< the layer of each use
  };

  std::vector<Layer> layers;
  std::vector<Tie> ties;
  std::vector<std::int64_t> cuts;  ///< forced borders: layer indices
};

/// Errors: Unsupported names the parameter and the way out (dtype other than fp32, sparse, not on
/// the CPU, a ModuleHolder that is empty, the same module registered twice…); InvalidArgument for
/// ties, cuts or freeze patterns that match nothing or whose shapes differ.
ModelSchema describe_model(const Model& model);

}  // namespace hydra
