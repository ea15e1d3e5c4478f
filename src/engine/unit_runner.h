#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/boundary.h"
#include "engine/parameter_update.h"
#include "engine/step_program.h"
#include "hydra/core/ids.h"
#include "hydra/core/trace.h"
#include "hydra/data/data_source.h"
#include "hydra/device/device.h"
#include "hydra/model/bound_shard.h"
#include "hydra/model/pilot.h"

namespace hydra {

/// The update of a model whose whole state is on the device: done within its one unit.
struct ResidentUpdate {
  const Optimizer* optimizer = nullptr;
  double learning_rate = 0;
  std::optional<double> max_gradient_norm;
  std::byte* moments = nullptr;
  std::vector<std::byte*> tied_moments;    ///< per tie of the model; null when frozen
  std::vector<ParameterState> parameters;  ///< per FlatLayout::trainable entry
  std::vector<ParameterState> ties;        ///< per tie of the model
};

/// Everything that one unit works with. Pointers are lent until the unit has ended: the device
/// memory by a claim, the host memory by the job's step.
struct UnitCommand {
  JobId job;
  std::string label;                ///< "job-2 forward shard 3", for traces
  std::string reason;               ///< why it was chosen, for traces
  std::vector<std::int64_t> flows;  ///< of the copies that were fetched for it, for traces
  Unit unit;
  std::int64_t step = 0;
  std::uint64_t seed = 0;
  BoundShard* modules = nullptr;
  const ModelSchema* schema = nullptr;
  ShardMemory parts;  ///< trainable, frozen and tied parts; the rest is the runner's

  const Batch* batch = nullptr;
  std::int64_t micro_batch_size = 1;
  std::vector<BoundarySlot>* inputs = nullptr;            ///< null: the batch's
  std::vector<BoundarySlot>* outputs = nullptr;           ///< forward
  std::vector<BoundarySlot>* output_gradients = nullptr;  ///< backward
  std::vector<BoundarySlot>* input_gradients = nullptr;   ///< tail and backward; null: not needed
  /// Per micro-batch, fired when what the unit hands on has arrived; empty: it hands nothing on.
  std::vector<Event> arrivals;

  /// The output tensors as the pilot saw them; forward alone.
  const std::vector<BoundaryTensor>* output_border = nullptr;

  const std::byte* buffers_before = nullptr;  ///< mutable buffers before this step, on the host
  std::byte* buffers_after = nullptr;         ///< where their new values go; null in backward
  std::byte* gradients = nullptr;             ///< host target; null when updated on the device
  std::vector<std::byte*> tied_gradients;     ///< likewise, per FlatLayout::tied entry

  std::optional<ResidentUpdate> resident;
};

/// What a unit gave, apart from the bytes.
struct UnitOutcome {
  std::exception_ptr failure;
  bool superseded = false;          ///< it failed because the unit before it did
  double loss = 0;                  ///< tail alone
  double gradient_norm = 0;         ///< resident updates alone
  std::vector<bool> touched;        ///< per FlatLayout::trainable entry
  std::vector<bool> touched_tied;   ///< per FlatLayout::tied entry
  std::vector<double> square_sums;  ///< per FlatLayout::trainable entry; 0 when untouched
  Nanoseconds compute{0};           ///< the worker's time, without `waited`
  Nanoseconds waited{0};            ///< for micro-batches of the unit before it
};

/// Called as a unit goes on, on the device's worker or copy threads; brief, never throwing.
struct UnitCallbacks {
  /// The worker is free again. After a failure nothing else is called and nothing is in flight.
  std::function<void(UnitOutcome)> computed;
  /// The outputs (or input gradients) and the buffers are on the host.
  std::function<void(std::exception_ptr)> emitted;
  /// The gradients are on the host and their device memory is free.
  std::function<void(std::exception_ptr)> drained;
};

/// Throws NonFinite, naming the step, unless the norm is finite.
void require_finite_norm(double norm, std::int64_t step);

/// Runs a unit. Confined to the device's worker. Does not throw.
void run_unit(Device& device, const UnitCommand& command, const UnitCallbacks& callbacks,
              const Clock& clock, TraceSink& trace);

}  // namespace hydra
