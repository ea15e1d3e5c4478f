#pragma once

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
  struct Tier {
    Bytes budget{};  ///< 0: there is none
    Bytes peak{};
  };

  Nanoseconds wall{0};
  std::vector<Device> devices{};
  std::vector<Link> links{};
  Tier host{};
  Tier storage{};
};

/// The thresholds of `bottleneck`, as shares of 1.
struct BottleneckThresholds {
  double busy = 0.90;         ///< of the devices' time: from here on nothing is to be gained
  double link_busy = 0.80;    ///< of the wall time: from here on a link is the limit
  double memory_full = 0.90;  ///< of a budget: from here on its peak counts as full
  double unaccounted = 0.05;  ///< of the devices' time: beyond it nothing can be said
};

/// Says what holds the devices up and what to change, as "KEY: facts: what to change".
///
/// "Devices' time" is the wall time of all devices together. The first row that holds decides:
///
/// | KEY                | when                                                                    |
/// |--------------------|-------------------------------------------------------------------------|
/// | `unknown`          | no device or wall time; or the five times miss the devices' time by     |
/// |                    | more than `unaccounted`                                                 |
/// | `none`             | busy for at least `busy` of the devices' time                           |
/// |                    | *else by the largest of the four waits, the first of equals:*           |
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
