#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

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
  bool storage = false;  ///< there is a storage tier: parts have their homes there
};

/// Checks a job's options, describes its model, runs the pilot and plans. What it returns keeps
/// nothing of JobInputs.
/// Thread safety: thread-safe; called by the submitting thread.
/// Errors: InvalidArgument, Unsupported, DoesNotFit, DataError, LayerError: nothing was started.
std::shared_ptr<const PreparedJob> prepare_job(const JobOptions& options,
                                               const MachineFacts& machine,
                                               const PilotRunner& run_pilot);

/// Returns the steps in which a job's parts are made: shard by shard, values before moments.
std::vector<InitialStep> initial_steps(const PreparedJob& prepared);

/// The host bytes that a shard has beside its parts: buffers twice and, of a deferred job,
/// gradients.
Bytes bytes_beside_parts(const PreparedJob& prepared, std::size_t shard);

/// Makes the parts of a step out of `room` and, of one with values, what is beside them out of
/// `beside`; writes the initial weights into them, one layer at a time, those in `given` (null:
/// none) in place of the factories'. What a factory makes is beside the budget until its layer has
/// been written: one layer's parameters at most.
/// Errors: whatever a factory throws; OutOfHostMemory.
InitialisedStep make_initial_step(const PreparedJob& prepared, const Weights* given,
                                  const InitialStep& step, HostArena& arena, Reservation room,
                                  Reservation beside);

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

/// Where one shard's values lie in host memory: its own, and those of the ties that it owns.
struct ShardValues {
  std::byte* trainable = nullptr;
  std::byte* frozen = nullptr;
  std::byte* buffers = nullptr;
  std::map<std::size_t, std::byte*> ties;  ///< by tie of the model
};

/// Adds a shard's parameters to the digest that is a job's fingerprint: the SHA-256 over all
/// parameters' bytes in model order, tied ones with the shard that owns them, buffers not.
void add_to_digest(const PreparedJob& prepared, std::size_t shard, const ShardValues& values,
                   Sha256& digest);

/// Returns tensors for all weights of a model, in model order, with undefined content.
Weights empty_weights(const ModelSchema& schema);
/// Copies a shard's parameters and buffers into such tensors.
void copy_values(const PreparedJob& prepared, std::size_t shard, const ShardValues& values,
                 Weights& weights);

}  // namespace hydra
