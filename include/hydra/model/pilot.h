#pragma once

#include <cstdint>
#include <vector>

#include "hydra/device/device.h"
#include "hydra/model/layer_context.h"
#include "hydra/model/model.h"
#include "hydra/model/plan.h"
#include "hydra/model/schema.h"

namespace hydra {

/// Shape and type of a tensor that passes a shard border.
struct BoundaryTensor {
  std::vector<std::int64_t> shape;  ///< at the worst micro-batch
  c10::ScalarType type = c10::ScalarType::Float;
  bool differentiable = false;
  Bytes bytes;
};

struct PilotResult {
  std::vector<LayerMeasure> layers;
  std::vector<std::vector<BoundaryTensor>> outputs;  ///< per layer
};

/// Runs every layer once at the worst micro-batch, one at a time, on the device whose task calls
/// this, and measures bytes and times.
///
/// Confined to the device's worker. The device is otherwise idle and empty while it runs.
/// Errors: DoesNotFit when a layer's parameters or its run exceed the budget (with its name and
/// numbers); Unsupported when a layer draws from the process-wide generator, gives a non-scalar
/// loss as the last layer, makes sparse gradients, or keeps state (each with what to use instead);
/// LayerError when it throws.
PilotResult run_pilot(const Model& model, const ModelSchema& schema, const Tensors& inputs,
                      const SideInputs& side, double loss_denominator, std::uint64_t seed,
                      Device& device);

}  // namespace hydra
