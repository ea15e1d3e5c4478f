#include "hydra/report/utilisation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace hydra {
namespace {

double share(Nanoseconds part, Nanoseconds whole) { return seconds(part) / seconds(whole); }

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

bool is_full(Bytes peak, Bytes budget, double threshold) {
  return budget > Bytes() &&
         static_cast<double>(peak.count()) >= threshold * static_cast<double>(budget.count());
}

std::string peak_of_budget(Bytes peak, Bytes budget) {
  return "peak " + to_string(peak) + " of " + to_string(budget);
}

/// All devices' times together.
Utilisation::Device sum_of(const std::vector<Utilisation::Device>& devices) {
  Utilisation::Device sum;
  for (const auto& device : devices) {
    sum.busy += device.busy;
    sum.transfer_wait += device.transfer_wait;
    sum.unit_wait += device.unit_wait;
    sum.supply_wait += device.supply_wait;
    sum.idle += device.idle;
  }
  return sum;
}

std::string transfer_bottleneck(const Utilisation& run, const std::string& waited,
                                const BottleneckThresholds& thresholds) {
  const auto link = std::max_element(run.links.begin(), run.links.end(),
                                     [](const auto& a, const auto& b) { return a.busy < b.busy; });
  const double link_share = link == run.links.end() ? 0 : share(link->busy, run.wall);
  if (link_share >= thresholds.link_busy) {
    return "link: " + link->name + " was busy " + percent(link_share) + " of the wall time with " +
           to_string(link->bytes) + ", and " + waited +
           " for transfers: give the device more memory, so that more stays there, or take larger "
           "mini-batches, which move the same parameters for more computation";
  }
  const auto device = std::max_element(
      run.devices.begin(), run.devices.end(),
      [](const auto& a, const auto& b) { return a.transfer_wait < b.transfer_wait; });
  if (is_full(device->peak, device->budget, thresholds.memory_full)) {
    return "device budget: " + waited + " for transfers, and " + device->name + " was full (" +
           peak_of_budget(device->peak, device->budget) +
           "), so that the next shard had no room to arrive meanwhile: raise the device's memory, "
           "or lower micro_batch_size";
  }
  return "micro-batch size: " + waited + " for transfers, while the busiest link stood still " +
         percent(1 - link_share) + " of the wall time and " + device->name + " had room (" +
         peak_of_budget(device->peak, device->budget) +
         "): raise micro_batch_size, for fewer and larger copies";
}

std::string unit_bottleneck(const Utilisation& run, const std::string& waited,
                            const BottleneckThresholds& thresholds) {
  std::string text = "models in flight: " + waited +
                     " for another unit of the same job or for an update: submit more jobs at "
                     "once, or raise update_threads";
  if (is_full(run.host.peak, run.host.budget, thresholds.memory_full)) {
    text += "; host memory is full too (" + peak_of_budget(run.host.peak, run.host.budget) +
            "), so raise host_memory for them to start";
  }
  return text;
}

std::string supply_bottleneck(const Utilisation& run, const std::string& waited,
                              const BottleneckThresholds& thresholds) {
  if (is_full(run.host.peak, run.host.budget, thresholds.memory_full)) {
    return "host memory: " + waited + " for jobs that waited for host memory (" +
           peak_of_budget(run.host.peak, run.host.budget) + "): raise host_memory";
  }
  return "data: " + waited +
         " for mini-batches: make the data source faster, or raise loader_depth";
}

}  // namespace

std::string bottleneck(const Utilisation& run, const BottleneckThresholds& thresholds) {
  if (run.devices.empty() || run.wall <= Nanoseconds(0)) return "unknown: nothing was measured";
  const Utilisation::Device sum = sum_of(run.devices);
  const Nanoseconds whole = run.wall * static_cast<std::int64_t>(run.devices.size());
  const double accounted = share(sum.total(), whole);
  if (std::abs(1 - accounted) > thresholds.unaccounted) {
    return "unknown: " + percent(accounted) + " of the devices' time is accounted for";
  }
  const double busy = share(sum.busy, whole);
  if (busy >= thresholds.busy) {
    return "none: devices busy (" + percent(busy) + " of their time)";
  }
  const Nanoseconds longest =
      std::max({sum.transfer_wait, sum.unit_wait, sum.supply_wait, sum.idle});
  const std::string waited = "devices waited " + percent(share(longest, whole)) + " of their time";
  if (longest == sum.transfer_wait) return transfer_bottleneck(run, waited, thresholds);
  if (longest == sum.unit_wait) return unit_bottleneck(run, waited, thresholds);
  if (longest == sum.supply_wait) return supply_bottleneck(run, waited, thresholds);
  return "no job left: devices had no job " + percent(share(longest, whole)) +
         " of their time: submit more jobs or use fewer devices; where one job is last by far, "
         "submit it first";
}

}  // namespace hydra
