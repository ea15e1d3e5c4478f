#pragma once

#include <cstdint>
#include <vector>

#include "hydra/model/plan.h"

namespace hydra {

/// What a unit does with its shard.
enum class UnitKind {
  kForward,   ///< forward without recording
  kTail,      ///< the last shard: forward, loss and backward, micro-batch by micro-batch
  kBackward,  ///< recompute, then backward
};

const char* to_string(UnitKind kind);

struct Unit {
  UnitKind kind = UnitKind::kForward;
  std::int64_t shard = 0;

  friend bool operator==(const Unit&, const Unit&) = default;
};

/// Returns the units of one step in order: forward up to the last shard, the tail, then backward
/// down to `first_trainable`, the first shard that has anything to train.
std::vector<Unit> step_program(std::int64_t shards, std::int64_t first_trainable);

/// The planned compute time of a unit.
Nanoseconds planned_time(const Plan& plan, const Unit& unit);
/// The device bytes that a unit needs, its parts included.
Bytes required_bytes(const Plan& plan, const Unit& unit);

}  // namespace hydra
