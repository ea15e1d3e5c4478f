#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"
#include "hydra/schedule/policy.h"

namespace hydra {

/// A device of a simulation.
struct SimulatedDevice {
  double speed = 1;                  ///< divides the units' times
  double link_bytes_per_second = 0;  ///< per direction; 0: transfers take no time
  Bytes memory{};                    ///< for parts of shards alone; 0: everything stays
};

/// One shard of a simulated job: its bytes and times for a whole mini-batch.
struct SimulatedShard {
  Bytes parts{};            ///< go up before a unit, unless they are there
  Bytes gradients{};        ///< go down after its backward unit
  Nanoseconds forward{0};   ///< unused for the last shard, whose one unit is `backward`
  Nanoseconds backward{0};  ///< recomputation included
  Nanoseconds update{0};    ///< on a worker of the host, before the shard's next forward unit
};

struct SimulatedJob {
  std::vector<SimulatedShard> shards{};
  std::int64_t steps = 1;
  std::int64_t priority = 0;
  Nanoseconds arrival{0};
};

struct SimulationOptions {
  std::vector<SimulatedDevice> devices{};
  std::vector<SimulatedJob> jobs{};
  const Policy* policy = nullptr;  ///< borrowed
  int update_workers = 1;
  bool keep_units = false;  ///< fills SimulationResult::units
};

/// What a simulated sweep came to.
struct SimulationResult {
  struct Device {
    Nanoseconds busy{0};      ///< computing
    Nanoseconds upload{0};    ///< its link up at work
    Nanoseconds download{0};  ///< its link down at work
  };
  struct UnitRun {
    std::size_t job = 0;
    std::size_t device = 0;
    std::int64_t number = 0;  ///< of the job's units, from 0
    Nanoseconds start{0};
    Nanoseconds end{0};
    std::string_view reason;
  };
  Nanoseconds makespan{0};  ///< until the last update
  std::vector<Device> devices;
  std::vector<Nanoseconds> job_ends;
  std::vector<UnitRun> units;
};

/// Plays a sweep in virtual time by the engine's rules: one unit of a job at a time, any free
/// device takes any job, each device decides one unit ahead and fetches it meanwhile, copies of
/// parts stay while there is room, gradients leave beside the computation, an update comes before
/// the shard's next use. Deterministic. Thread safety: thread-safe. Errors: InvalidArgument for
/// options that cannot be simulated, and for a policy under which the sweep does not end; it names
/// the jobs that are stuck and what each waits for.
SimulationResult simulate(const SimulationOptions& options);

/// Returns a time that no schedule can undercut: the largest of all work over all devices, the
/// longest job on the fastest device, and what has to cross the links at least (every part once a
/// step, since its update overtakes the copies; every gradient once).
Nanoseconds makespan_lower_bound(const SimulationOptions& options);

}  // namespace hydra
