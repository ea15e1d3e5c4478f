#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hydra/model/layer_factory.h"

namespace hydra {

/// The definition of a model: named layers in order, ties and frozen parameters. Holds no weights.
///
/// Full names of parameters are "layer.parameter", for example "block3.attention.weight".
/// Jobs share one definition through shared_ptr<const Model>.
/// Thread safety: immutable once it is shared.
class Model {
 public:
  struct LayerDefinition {
    std::string name;
    LayerFactory make;
  };
  /// Parameters that are one: the first owns the initial value.
  struct Tie {
    std::vector<std::string> parameters;  ///< full names, in layer order
  };

  explicit Model(std::string name) : name_(std::move(name)) {}

  /// Appends a layer. Errors: InvalidArgument for an empty or repeated name or one with a dot.
  Model& add(std::string layer_name, LayerFactory make);
  /// Makes the parameters one, with one gradient accumulator per use, added in the given order.
  /// They must lie in different layers, in layer order, with one shape.
  Model& tie(std::vector<std::string> full_names);
  /// Freezes the parameters whose full names match the pattern (* and ?): no gradient, no moments.
  Model& freeze(std::string pattern);
  /// Forces a shard border before this layer; with any such cut, only these are used.
  Model& cut_before(std::string layer_name);

  const std::string& name() const noexcept { return name_; }
  const std::vector<LayerDefinition>& layers() const noexcept { return layers_; }
  const std::vector<Tie>& ties() const noexcept { return ties_; }
  const std::vector<std::string>& frozen_patterns() const noexcept { return frozen_; }
  const std::vector<std::string>& cuts() const noexcept { return cuts_; }

 private:
  std::string name_;
  std::vector<LayerDefinition> layers_;
  std::vector<Tie> ties_;
  std::vector<std::string> frozen_;
  std::vector<std::string> cuts_;
};

/// Makes layer `index` with its initial weights under a process-wide generator that is seeded from
/// (seed, index) and restored afterwards; calls are serialised over the process.
std::shared_ptr<Layer> make_layer(const Model& model, std::int64_t index, std::uint64_t seed);

}  // namespace hydra
