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

template <typename Lane>
const Lane* busiest(const std::vector<Lane>& lanes) {
  const auto found = std::max_element(lanes.begin(), lanes.end(),
                                      [](const auto& a, const auto& b) { return a.busy < b.busy; });
  return found == lanes.end() ? nullptr : &*found;
}

/// The drive that devices wait for, if it is a drive.
const Utilisation::Drive* limiting_drive(const Utilisation& run, double waited, bool for_transfers,
                                         const BottleneckThresholds& thresholds) {
  const Utilisation::Drive* drive = busiest(run.drives);
  if (drive == nullptr) return nullptr;
  const double busy = share(drive->busy, run.wall);
  if (busy >= thresholds.link_busy) return drive;
  const Utilisation::Link* link = busiest(run.links);
  const bool busier = link == nullptr || drive->busy > link->busy;
  return for_transfers && busier && busy >= waited / 2 ? drive : nullptr;
}

std::string storage_bottleneck(const Utilisation& run, const Utilisation::Drive& drive,
                               const std::string& waited, const BottleneckThresholds& thresholds) {
  std::string text = "storage: the drive of " + drive.directory + " was busy " +
                     percent(share(drive.busy, run.wall)) + " of the wall time (" +
                     to_string(drive.read) + " read, " + to_string(drive.written) +
                     " written), and " + waited + ": ";
  if (is_full(run.host_cache.peak, run.host_cache.budget, thresholds.memory_full)) {
    text += "raise host_cache (" + peak_of_budget(run.host_cache.peak, run.host_cache.budget) +
            "), so that more stays in memory; ";
  }
  return text +
         "take more tokens per mini-batch, which move the same bytes for more computation; spread "
         "the storage over more drives; or keep more models in flight, to compute while others "
         "are read";
}

std::string transfer_bottleneck(const Utilisation& run, const std::string& waited,
                                const BottleneckThresholds& thresholds) {
  const Utilisation::Link* link = busiest(run.links);
  const double link_share = link == nullptr ? 0 : share(link->busy, run.wall);
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
  if (run.steps && *run.steps < thresholds.few_steps && run.wall < thresholds.short_run) {
    return "unknown: the run was too short to judge (" + std::to_string(*run.steps) +
           (*run.steps == 1 ? " step)" : " steps)");
  }
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
  if (longest > sum.idle) {
    const bool for_transfers = longest == sum.transfer_wait;
    const auto* drive = limiting_drive(run, share(longest, whole), for_transfers, thresholds);
    if (drive != nullptr) {
      const std::string what = for_transfers              ? " for transfers"
                               : longest == sum.unit_wait ? " for units and updates"
                                                          : " for their jobs";
      return storage_bottleneck(run, *drive, waited + what, thresholds);
    }
  }
  if (longest == sum.transfer_wait) return transfer_bottleneck(run, waited, thresholds);
  if (longest == sum.unit_wait) return unit_bottleneck(run, waited, thresholds);
  if (longest == sum.supply_wait) return supply_bottleneck(run, waited, thresholds);
  return "no job left: devices had no job " + percent(share(longest, whole)) +
         " of their time: submit more jobs or use fewer devices; where one job is last by far, "
         "submit it first";
}

}  // namespace hydra
