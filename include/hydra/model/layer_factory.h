#pragma once

#include <functional>
#include <memory>

namespace hydra {

class Layer;  // hydra/model/layer.h

/// Makes one layer with its initial weights. Called under a seeded process-wide generator, so that
/// torch::nn's own initialisations are a function of (job seed, layer); may be called several
/// times.
using LayerFactory = std::function<std::shared_ptr<Layer>()>;

}  // namespace hydra
