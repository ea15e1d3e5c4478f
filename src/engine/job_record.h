#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/boundary.h"
#include "engine/global_norm.h"
#include "engine/job_shared.h"
#include "engine/parameter_update.h"
#include "engine/step_program.h"
#include "engine/step_rates.h"
#include "engine/task_pool.h"
#include "engine/unit_runner.h"
#include "hydra/core/sha256.h"
#include "hydra/data/batch_loader.h"
#include "hydra/engine/job_options.h"
#include "hydra/memory/host_arena.h"
#include "hydra/model/bound_shard.h"
#include "hydra/model/pilot.h"
#include "hydra/model/schema.h"
#include "hydra/residency/shard_store.h"
#include "hydra/schedule/time_model.h"

namespace hydra {

/// The user's objects that a job needs until it ends, and no longer.
struct JobInputs {
  std::shared_ptr<DataSource> data;
  std::shared_ptr<const Weights> initial_weights;
  std::shared_ptr<JobCallbacks> callbacks;
};

/// The unchanging side of a job: what was decided before it was admitted.
struct PreparedJob {
  JobOptions options;  ///< without what is in JobInputs
  ModelSchema schema;
  PilotResult pilot;
  Plan plan;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<FlatLayout> layouts;  ///< one per shard
  std::int64_t micro_batch_size = 1;
  std::int64_t first_trainable = 0;  ///< the first shard that has anything to train
  bool edits_gradients = false;      ///< JobCallbacks::on_gradients is to be called
  bool deferred = false;             ///< updates wait for the whole gradient
  bool on_storage = false;           ///< its parts have their homes on storage
  Bytes state_bytes;                 ///< host bytes from admission to end
  Bytes step_bytes;                  ///< host bytes of one step's boundaries and gradients
  Bytes storage_bytes;               ///< on drives, from admission to end
  Bytes cache_bytes;                 ///< of its parts, the most that is in the host at once
};

/// A part that a job is made of.
struct NewPart {
  enum class Role { kTrainable, kFrozen, kMoments, kTie, kTieMoments };
  Role role = Role::kTrainable;
  std::size_t index = 0;  ///< of the shard or, for the last two, of the tie
  Bytes bytes;
};

/// Parts of a job that are made together; they are in the host at once.
struct InitialStep {
  std::size_t shard = 0;
  bool values = false;  ///< the shard's initial values, with what it has beside its parts
  std::vector<NewPart> parts;

  Bytes bytes() const;
};

/// What an initial step has made.
struct InitialisedStep {
  std::vector<HostBuffer> parts;  ///< per InitialStep::parts
  // Of a step with values:
  std::unique_ptr<BoundShard> modules;
  HostBuffer buffers[2];
  HostBuffer gradients;                    ///< deferred jobs alone
  std::vector<HostBuffer> tied_gradients;  ///< likewise, per FlatLayout::tied entry
};

/// A job's initial weights on their way: step by step, so that they need not all be in the host.
struct Initialisation {
  std::vector<InitialStep> steps;
  std::size_t next = 0;
  bool working = false;
  std::optional<HostClaimId> room;  ///< of parts on storage
  Reservation memory;               ///< the job's host memory that is not used yet
};

/// When the host copy of a part is needed, in a job's program.
struct PartUse {
  std::vector<std::size_t> units;            ///< that have it loaded to their device
  std::optional<std::size_t> updated_after;  ///< the unit with whose gradient it is updated
  bool of_tie = false;
  std::size_t index = 0;  ///< of the shard or tie whose updates count
};

/// One shard of a running job.
struct ShardRecord {
  std::unique_ptr<BoundShard> modules;
  PartId trainable;
  PartId frozen;
  PartId moments;
  std::vector<PartId> claimed_parts;  ///< what a unit of this shard holds on its device
  HostBuffer buffers[2];
  std::vector<ParameterState> parameters;  ///< per FlatLayout::trainable entry
  std::int64_t settled = 0;                ///< how many steps' updates are done
  bool at_work = false;                    ///< a unit is using `modules`

  HostBuffer gradients;
  std::vector<HostBuffer> tied_gradients;
  std::vector<bool> touched;  ///< of the step whose gradient arrived last
  std::vector<bool> touched_tied;
  std::vector<double> square_sums;
};

/// One tied parameter of a running job.
struct TieRecord {
  struct Use {
    std::size_t shard = 0;
    std::size_t index = 0;  ///< in FlatLayout::tied
  };
  PartId part;
  PartId moments;
  bool frozen = false;
  ParameterState state;
  std::vector<Use> uses;
  std::int64_t arrived = 0;  ///< uses whose gradient of this step is on the host
  std::int64_t settled = 0;
  float* gradient = nullptr;  ///< the sum over uses; null when untouched
};

/// An update of a shard or a tie that is due and has not started.
struct PendingUpdate {
  JobId job;
  bool of_tie = false;
  std::size_t index = 0;
  double learning_rate = 0;
  float factor = 1.0F;
  std::optional<HostClaimId> claim;  ///< on its parts; they are on their way
};

/// Host memory of the step at work.
struct StepMemory {
  /// Per border (after shard s) and micro-batch.
  std::vector<std::vector<BoundarySlot>> activations;
  std::vector<std::vector<BoundarySlot>> gradients;
  Reservation rest;  ///< of the step's grant, beyond what the buffers took
};

/// Everything that the coordinator knows of one job. Confined to the coordinator.
struct JobRecord {
  JobId id;
  std::shared_ptr<JobShared> shared;
  std::shared_ptr<const PreparedJob> prepared;
  JobInputs inputs;
  std::vector<Unit> program;

  // Admission.
  bool admitted = false;  ///< its state bytes are reserved and initialisation has been started
  std::optional<Initialisation> initialisation;
  bool active = false;  ///< initialised, not ending
  std::vector<ShardRecord> shards;
  std::vector<TieRecord> ties;
  std::vector<PartId> parts;  ///< all, for sealing and removal
  std::unique_ptr<BatchLoader> loader;
  bool loader_stops = false;  ///< it has been told to; LoaderClosed is due
  std::string waits_for;      ///< what the log and its status say of why it is queued
  Reservation batches;
  Reservation storage;
  std::unordered_map<PartId, PartUse> uses;  ///< of parts on storage

  // The step at work.
  std::int64_t step = 0;
  std::int64_t end_step = 0;  ///< max_steps, or less once a callback has stopped the job
  StepRates rates{{}};
  bool step_begun = false;
  std::int64_t memory_ticket = 0;  ///< place in the queue for host memory; 0: not waiting
  std::optional<StepMemory> memory;
  std::shared_ptr<Batch> batch;
  int present_buffers = 0;  ///< which of ShardRecord::buffers holds the values of the step's start
  std::size_t next_unit = 0;         ///< the first one that has not been dispatched
  std::size_t claims = 0;            ///< how many from `next_unit` on are devices' next
  std::vector<std::int64_t> flying;  ///< units dispatched that have not emitted all, in order
  bool rewinding = false;  ///< a unit has to run again, once those that came after it have landed
  DeviceId last_device;

  /// The first unit that is neither dispatched nor claimed.
  std::size_t next_unclaimed() const { return next_unit + claims; }
  double loss = 0;
  double resident_norm = 0;  ///< of the gradient, when the device updates

  // Updates of the step whose backward pass is at work or done.
  std::optional<GradientSquares> squares;
  struct StepResult {
    std::int64_t step = 0;
    double loss = 0;
    std::int64_t tokens = 0;
  };
  std::int64_t update_step = 0;  ///< the step that the arriving gradients belong to
  std::int64_t gradients_arrived = 0;
  std::int64_t ties_combined = 0;
  std::optional<StepResult> unreported;  ///< a deferred step whose norm is not known yet
  std::int64_t undrained = 0;            ///< units whose gradients are still on a device
  std::int64_t updates_outstanding = 0;  ///< pending or at work

  // Callbacks.
  std::unique_ptr<TaskPool> callback_worker;  ///< one thread; none for jobs without callbacks
  bool step_told = false;                     ///< on_step is at work: the next step waits for it

  // Ending.
  std::optional<JobState> ending;
  std::exception_ptr failure;
  bool stopping = false;  ///< by request, at the step border `end_step`
  bool sealing = false;
  std::shared_ptr<Sha256> digest;  ///< in sealing, once its values are being read
  bool digested = false;           ///< all of them have been
  std::int64_t in_flight = 0;  ///< units, updates, initialisation: what must return before removal
  std::int64_t transfer_retries = 0;  ///< since the last unit that completed; one is allowed
  /// The unit that ran out of device memory and is tried once more, with the device to itself.
  std::optional<std::size_t> retry_alone;

  TimeModel times{{}};
  std::int64_t units_served = 0;
  std::int64_t last_turn =
      0;  ///< of units_given_: when it was given its last unit, or became active
};

}  // namespace hydra
