#pragma once

#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/job_record.h"
#include "hydra/core/sha256.h"
#include "hydra/engine/job_options.h"

namespace hydra {

/// The parts that hold one shard's values: its own, and those of the ties that it owns.
struct ValueParts {
  PartId trainable;
  PartId frozen;
  std::vector<std::pair<std::size_t, PartId>> ties;  ///< tie of the model, part

  std::vector<PartId> all() const;
};

/// A copy of weights on storage that a handle waits for.
struct WeightsReading {
  Weights weights;
  std::promise<Weights> done;
};

/// A visit of a job's values, shard by shard: each is brought to the host by a claim, and read by
/// the job worker. It ends in a digest (when a job is sealed) or in a copy.
struct ValueWalk {
  JobId job;
  std::shared_ptr<const PreparedJob> prepared;
  std::vector<ValueParts> parts;            ///< per shard
  std::vector<std::byte*> buffers;          ///< per shard; for a copy
  std::shared_ptr<Sha256> digest;           ///< or null
  std::shared_ptr<WeightsReading> reading;  ///< or null

  std::size_t next = 0;
  std::optional<HostClaimId> claim;
  bool working = false;
  std::exception_ptr failure;  ///< it ends once it is not working
};

/// The weights of a completed job, on storage as long as a handle lives.
struct KeptWeights {
  std::shared_ptr<const PreparedJob> prepared;
  std::vector<ValueParts> parts;
  std::vector<HostBuffer> buffers;
  Reservation storage;
  bool released = false;     ///< nobody wants them any more
  std::exception_ptr lost;   ///< a write of them has failed for good
  std::int64_t retries = 0;  ///< of transfers, since the last that went well

  std::vector<PartId> all_parts() const;
};

}  // namespace hydra
