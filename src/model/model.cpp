#include "hydra/model/model.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "hydra/core/error.h"
#include "hydra/core/random.h"
#include "hydra/model/layer.h"
#include "model/exception_text.h"
#include "model/process_generator.h"

namespace hydra {
namespace {

/// Seeds the process-wide generator for a scope and restores it. Scopes exclude each other.
class SeededProcessGenerator {
 public:
  explicit SeededProcessGenerator(std::uint64_t seed)
      : lock_(process_generator_mutex()), generator_(at::detail::getDefaultCPUGenerator()) {
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SeededProcessGenerator() { generator_.set_state(state_); }
  SeededProcessGenerator(const SeededProcessGenerator&) = delete;
  SeededProcessGenerator& operator=(const SeededProcessGenerator&) = delete;

 private:
  MutexLock lock_;
  at::Generator generator_;
  at::Tensor state_;
};

// Torch would follow a null child when it lists parameters.
void require_whole(const torch::nn::Module& module, const std::string& layer) {
  for (const auto& child : module.named_children()) {
    if (child.value() == nullptr) {
      throw InvalidArgument("layer \"" + layer + "\" has an empty module \"" + child.key() +
                            "\": make it before it is registered");
    }
    require_whole(*child.value(), layer);
  }
}

}  // namespace

Mutex& process_generator_mutex() {
  static Mutex mutex;
  return mutex;
}

Model& Model::add(std::string layer_name, LayerFactory make) {
  if (layer_name.empty() || layer_name.find('.') != std::string::npos) {
    throw InvalidArgument("model \"" + name_ + "\": a layer cannot be named \"" + layer_name +
                          "\": names are not empty and have no dot");
  }
  const bool repeated = std::any_of(layers_.begin(), layers_.end(),
                                    [&](const auto& layer) { return layer.name == layer_name; });
  if (repeated) {
    throw InvalidArgument("model \"" + name_ + "\" has two layers named \"" + layer_name + "\"");
  }
  if (make == nullptr) {
    throw InvalidArgument("model \"" + name_ + "\": layer \"" + layer_name +
                          "\" has an empty factory");
  }
  layers_.push_back({std::move(layer_name), std::move(make)});
  return *this;
}

Model& Model::tie(std::vector<std::string> full_names) {
  if (full_names.size() < 2) {
    throw InvalidArgument("model \"" + name_ + "\": a tie needs two parameters or more");
  }
  ties_.push_back({std::move(full_names)});
  return *this;
}

Model& Model::freeze(std::string pattern) {
  frozen_.push_back(std::move(pattern));
  return *this;
}

Model& Model::cut_before(std::string layer_name) {
  cuts_.push_back(std::move(layer_name));
  return *this;
}

std::shared_ptr<Layer> make_layer(const Model& model, std::int64_t index, std::uint64_t seed) {
  const auto& definition = model.layers().at(static_cast<std::size_t>(index));
  std::shared_ptr<Layer> made;
  try {
    const SeededProcessGenerator seeded(mix_seed(seed, {static_cast<std::uint64_t>(index)}));
    made = definition.make();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw LayerError("model \"" + model.name() + "\": making layer \"" + definition.name +
                     "\" failed: " + exception_text(error));
  }
  if (made == nullptr) {
    throw InvalidArgument("model \"" + model.name() + "\": the factory of layer \"" +
                          definition.name + "\" returned nothing");
  }
  require_whole(*made, definition.name);
  return made;
}

}  // namespace hydra
