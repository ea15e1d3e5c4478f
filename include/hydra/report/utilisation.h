#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"

namespace hydra {

/// What devices, links and tiers did with a run's wall time. A value without behaviour; whoever
/// measures fills it.
struct Utilisation {
  /// Each moment of the wall time belongs to one of the five times, so that they add up to it.
  struct Device {
    std::string name;
    Nanoseconds busy{0};           ///< computing a unit
    Nanoseconds transfer_wait{0};  ///< a unit is chosen, and what it needs is not on the device yet
    Nanoseconds unit_wait{0};      ///< each job waits for its own unit elsewhere or for an update
    Nanoseconds supply_wait{0};    ///< each job waits for its next mini-batch or for host memory
    Nanoseconds idle{0};           ///< there is no job that has not ended
    Bytes budget{};
    Bytes peak{};

    Nanoseconds total() const { return busy + transfer_wait + unit_wait + supply_wait + idle; }
  };
  /// One direction between the host and a device, or between the host and a drive.
  struct Link {
    std::string name;  ///< "host to cpu0"
    Bytes bytes{};
    Nanoseconds busy{0};
  };
  /// A drive of the storage tier.
  struct Drive {
    std::string directory;
    Bytes read{};
    Bytes written{};
    Nanoseconds busy{0};  ///< in either direction
  };
  struct Tier {
    Bytes budget{};  ///< 0: there is none
    Bytes peak{};
  };

  Nanoseconds wall{0};
  std::vector<Device> devices{};
  std::vector<Link> links{};    ///< between the host and devices
  std::vector<Drive> drives{};  ///< empty: there is no storage tier
  Tier host{};
  Tier host_cache{};
  Tier storage{};
  std::optional<std::int64_t> steps{};  ///< that all jobs together have ended; nothing: unknown
};

/// The thresholds of `bottleneck`, as shares of 1.
struct BottleneckThresholds {
  double busy = 0.90;           ///< of the devices' time: from here on nothing is to be gained
  double link_busy = 0.80;      ///< of the wall time: from here on a link is the limit
  double memory_full = 0.90;    ///< of a budget: from here on its peak counts as full
  double unaccounted = 0.05;    ///< of the devices' time: beyond it nothing can be said
  std::int64_t few_steps = 10;  ///< fewer steps than this, in less than
  Nanoseconds short_run{std::chrono::seconds(10)};  ///< this time, are mostly beginning and end
};

/// Says what holds the devices up and what to change, as "KEY: facts: what to change".
///
/// "Devices' time" is the wall time of all devices together. The first row that holds decides:
///
/// | KEY                | when                                                                    |
/// |--------------------|-------------------------------------------------------------------------|
/// | `unknown`          | no device or wall time; a run of fewer than `few_steps` in less than    |
/// |                    | `short_run`; or the five times miss the devices' time by more than      |
/// |                    | `unaccounted`                                                           |
/// | `none`             | busy for at least `busy` of the devices' time                           |
/// |                    | *else by the largest of the four waits, the first of equals:*           |
/// | `storage`          | transfer, unit or supply: some drive is busy for `link_busy` of the     |
/// |                    | wall time; or transfer: for longer than any link, and for at least half |
/// |                    | of the share that devices waited                                        |
/// | `link`             | transfer: some link is busy for `link_busy` of the wall time            |
/// | `device budget`    | transfer: the device that waits most is full (`memory_full`)            |
/// | `micro-batch size` | transfer: neither, so that many small copies are what is waited for     |
/// | `models in flight` | unit: too few jobs whose units could run meanwhile                      |
/// | `host memory`      | supply: the host tier is full (`memory_full`)                           |
/// | `data`             | supply: it is not, so that mini-batches come too slowly                 |
/// | `no job left`      | idle                                                                    |
///
/// Thread safety: pure.
std::string bottleneck(const Utilisation& utilisation, const BottleneckThresholds& thresholds = {});

}  // namespace hydra
