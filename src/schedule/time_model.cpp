#include "hydra/schedule/time_model.h"

namespace hydra {
namespace {
// About four steps' memory: follows a change of load without chasing one stall.
constexpr double kWeightOfNewest = 0.25;
}  // namespace

TimeModel::TimeModel(const std::vector<Nanoseconds>& predictions) {
  for (const Nanoseconds prediction : predictions) entries_.push_back({prediction, false});
}

Nanoseconds TimeModel::predict(std::size_t unit) const { return entries_.at(unit).mean; }

void TimeModel::observe(std::size_t unit, Nanoseconds measured) {
  Entry& entry = entries_.at(unit);
  if (!entry.measured) {
    entry = {measured, true};
    return;
  }
  const double difference = static_cast<double>((measured - entry.mean).count());
  entry.mean += Nanoseconds(static_cast<std::int64_t>(kWeightOfNewest * difference));
}

}  // namespace hydra
