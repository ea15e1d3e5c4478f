#pragma once

#include <functional>
#include <memory>

#include "engine/job_record.h"
#include "hydra/device/device.h"
#include "hydra/memory/host_arena.h"

namespace hydra {

/// Runs the pilot somewhere and returns what it measured. Blocks: until it is done.
using PilotRunner = std::function<PilotResult(const Model& model, const ModelSchema& schema,
                                              const Batch& worst_micro_batch, std::uint64_t seed)>;

/// What planning needs to know of the machine.
struct MachineFacts {
  Bytes device_budget;                          ///< of the smallest device
  std::function<Bytes(Bytes)> allocation_size;  ///< what a device counts for an allocation
  double link_bytes_per_second = 0;
  int loader_depth = 2;  ///< batches loaded ahead
};

/// Checks a job's options, describes its model, runs the pilot and plans.
/// Thread safety: thread-safe; called by the submitting thread.
/// Errors: InvalidArgument, Unsupported, DoesNotFit, DataError, LayerError: nothing was started.
std::shared_ptr<const PreparedJob> prepare_job(const JobOptions& options,
                                               const MachineFacts& machine,
                                               const PilotRunner& run_pilot);

/// Takes the job's host memory out of `grant` and writes the initial weights into it, one layer at
/// a time. Errors: whatever a factory throws; OutOfHostMemory.
InitialisedJob initialise_job(const PreparedJob& prepared, HostArena& arena, Reservation& grant);

/// Takes one step's host memory out of `grant`.
StepMemory make_step_memory(const PreparedJob& prepared, HostArena& arena, Reservation grant);

/// Returns the final values as tensors that own the homes, in model order, tied parameters once.
/// `buffers` are the shards' buffers. Moments are not part of it.
struct FinalShard {
  HostBuffer trainable;
  HostBuffer frozen;
  HostBuffer buffers;
};
Weights collect_weights(const PreparedJob& prepared, std::vector<FinalShard> shards,
                        std::vector<HostBuffer> ties);

/// Returns the SHA-256 over the parameters' bytes in model order; buffers are not part of it.
std::string parameters_sha256(const PreparedJob& prepared, const Weights& weights);

}  // namespace hydra
