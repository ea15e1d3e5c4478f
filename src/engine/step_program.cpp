#include "engine/step_program.h"

namespace hydra {

const char* to_string(UnitKind kind) {
  switch (kind) {
    case UnitKind::kForward:
      return "forward";
    case UnitKind::kTail:
      return "forward+backward";
    case UnitKind::kBackward:
      return "backward";
  }
  return "?";
}

std::vector<Unit> step_program(std::int64_t shards, std::int64_t first_trainable) {
  std::vector<Unit> units;
  for (std::int64_t s = 0; s + 1 < shards; ++s) units.push_back({UnitKind::kForward, s});
  units.push_back({UnitKind::kTail, shards - 1});
  for (std::int64_t s = shards - 2; s >= first_trainable; --s) {
    units.push_back({UnitKind::kBackward, s});
  }
  return units;
}

Nanoseconds planned_time(const Plan& plan, const Unit& unit) {
  const ShardPlan& shard = plan.shards.at(static_cast<std::size_t>(unit.shard));
  return unit.kind == UnitKind::kForward ? shard.forward : shard.backward;
}

Bytes required_bytes(const Plan& plan, const Unit& unit) {
  const ShardPlan& shard = plan.shards.at(static_cast<std::size_t>(unit.shard));
  return unit.kind == UnitKind::kForward ? shard.forward_required : shard.backward_required;
}

}  // namespace hydra
