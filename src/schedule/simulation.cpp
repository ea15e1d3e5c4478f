#include "hydra/schedule/simulation.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "hydra/core/error.h"

namespace hydra {
namespace {

Nanoseconds scaled(Nanoseconds time, double speed) {
  return Nanoseconds(static_cast<std::int64_t>(static_cast<double>(time.count()) / speed));
}

Nanoseconds transfer_time(Bytes bytes, double rate) {
  if (rate <= 0) return Nanoseconds(0);
  return Nanoseconds(static_cast<std::int64_t>(1e9 * static_cast<double>(bytes.count()) / rate));
}

/// The units of one step in their order: forward through all shards but the last, the last one's
/// only unit, and back.
struct UnitOfStep {
  std::size_t shard = 0;
  bool backward = false;
};

std::vector<UnitOfStep> units_of_step(std::size_t shards) {
  std::vector<UnitOfStep> units;
  for (std::size_t s = 0; s + 1 < shards; ++s) units.push_back({s, false});
  for (std::size_t s = shards; s-- > 0;) units.push_back({s, true});
  return units;
}

Nanoseconds unit_time(const SimulatedJob& job, const UnitOfStep& unit) {
  const SimulatedShard& shard = job.shards[unit.shard];
  return unit.backward ? shard.backward : shard.forward;
}

Nanoseconds step_time(const SimulatedJob& job) {
  Nanoseconds total{0};
  for (const UnitOfStep& unit : units_of_step(job.shards.size())) total += unit_time(job, unit);
  return total;
}

void validate(const SimulationOptions& options) {
  if (options.devices.empty() || options.policy == nullptr || options.update_workers < 1) {
    throw InvalidArgument("a simulation needs a device, a policy and an update worker");
  }
  for (std::size_t j = 0; j < options.jobs.size(); ++j) {
    if (options.jobs[j].shards.empty() || options.jobs[j].steps < 1) {
      throw InvalidArgument("simulated job " + std::to_string(j) + " has no shards or no steps");
    }
    for (const SimulatedShard& shard : options.jobs[j].shards) {
      for (const SimulatedDevice& device : options.devices) {
        if (device.memory == Bytes(0) || shard.parts <= device.memory) continue;
        throw InvalidArgument("simulated job " + std::to_string(j) + " has a shard of " +
                              to_string(shard.parts) + ", a device holds " +
                              to_string(device.memory));
      }
    }
  }
  for (const SimulatedDevice& device : options.devices) {
    if (!(device.speed > 0)) throw InvalidArgument("a simulated device's speed must be positive");
  }
}

/// The parts that lie on one device.
class Residents {
 public:
  using Part = std::pair<std::size_t, std::size_t>;  // job, shard

  explicit Residents(Bytes memory) : memory_(memory) {}

  bool holds(Part part) const { return held_.contains(part); }

  /// Makes room by dropping the unpinned part that is needed last; false when there is none.
  template <typename Distance>
  bool add(Part part, Bytes bytes, Distance distance) {
    while (memory_ > Bytes(0) && used_ + bytes > memory_) {
      auto victim = held_.end();
      for (auto entry = held_.begin(); entry != held_.end(); ++entry) {
        if (entry->second.pins > 0) continue;
        if (victim == held_.end() || distance(entry->first) > distance(victim->first)) {
          victim = entry;
        }
      }
      if (victim == held_.end()) return false;
      used_ -= victim->second.bytes;
      held_.erase(victim);
    }
    held_.emplace(part, Held{bytes, 0, false});
    used_ += bytes;
    return true;
  }

  void pin(Part part) { ++held_.at(part).pins; }

  void unpin(Part part) {
    Held& held = held_.at(part);
    --held.pins;
    if (held.outdated && held.pins == 0) drop(part);
  }

  /// The part has been updated: a copy of it is worth nothing any more.
  void outdate(Part part) {
    const auto found = held_.find(part);
    if (found == held_.end()) return;
    found->second.outdated = true;
    if (found->second.pins == 0) drop(part);
  }

 private:
  struct Held {
    Bytes bytes;
    int pins = 0;
    bool outdated = false;
  };

  void drop(Part part) {
    used_ -= held_.at(part).bytes;
    held_.erase(part);
  }

  Bytes memory_;
  Bytes used_;
  std::map<Part, Held> held_;
};

class Simulator {
 public:
  explicit Simulator(const SimulationOptions& options) : options_(options) {
    for (const SimulatedDevice& device : options.devices) devices_.emplace_back(device.memory);
    update_free_.assign(static_cast<std::size_t>(options.update_workers), Nanoseconds(0));
    for (std::size_t j = 0; j < options.jobs.size(); ++j) {
      Job job;
      job.units = units_of_step(options.jobs[j].shards.size());
      job.step_time = step_time(options.jobs[j]);
      job.remaining = job.step_time * options.jobs[j].steps;
      job.settled.assign(options.jobs[j].shards.size(), 0);
      jobs_.push_back(std::move(job));
      at(options.jobs[j].arrival, [this, j] {
        jobs_[j].arrived = true;
        jobs_[j].last_turn = units_given_;
      });
    }
    result_.devices.resize(options.devices.size());
    result_.job_ends.assign(options.jobs.size(), Nanoseconds(0));
  }

  SimulationResult run() {
    while (!events_.empty()) {
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time == now_) {
        const auto happen = std::move(const_cast<Event&>(events_.top()).happen);
        events_.pop();
        happen();
      }
      schedule();
    }
    refuse_stuck_jobs();
    result_.makespan = now_;
    return std::move(result_);
  }

 private:
  struct Event {
    Nanoseconds time{0};
    std::int64_t number = 0;
    std::function<void()> happen;
    bool operator<(const Event& other) const {  // the queue's top is its largest
      return std::tuple(time, number) > std::tuple(other.time, other.number);
    }
  };
  struct Claim {
    std::size_t job = 0;
    bool pinned = false;
    bool loaded = false;
    std::string_view reason;
  };
  struct Device {
    explicit Device(Bytes memory) : residents(memory) {}
    Residents residents;
    std::optional<std::size_t> running;  // job
    std::optional<Claim> next;
    Nanoseconds upload_free{0};
    Nanoseconds download_free{0};
  };
  struct Job {
    std::vector<UnitOfStep> units;
    Nanoseconds step_time{0};
    Nanoseconds remaining{0};
    bool arrived = false;
    bool claimed = false;
    std::optional<std::size_t> flying_on;
    std::optional<std::size_t> last_device;
    std::int64_t step = 0;
    std::size_t unit = 0;
    std::int64_t served = 0;
    std::int64_t last_turn = 0;
    std::vector<std::int64_t> settled;  // updates done, per shard
  };

  // Nothing will happen any more, so what has not been done never will be.
  void refuse_stuck_jobs() const {
    std::string stuck;
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      if (done(j)) continue;
      stuck += (stuck.empty() ? "job " : "; job ") + std::to_string(j) + ", " +
               std::to_string(jobs_[j].step) + " of " + std::to_string(options_.jobs[j].steps) +
               " steps done, waits for " + wanted(j);
    }
    if (stuck.empty()) return;
    throw InvalidArgument("the simulated sweep is stuck at " + std::to_string(seconds(now_)) +
                          " s: " + stuck);
  }

  std::string wanted(std::size_t j) const {
    const Job& job = jobs_[j];
    const UnitOfStep& unit = job.units[job.unit];
    const std::string next = std::string("its ") + (unit.backward ? "backward" : "forward") +
                             " unit of shard " + std::to_string(unit.shard);
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      if (!devices_[d].next || devices_[d].next->job != j) continue;
      return "device " + std::to_string(d) + " to start " + next;
    }
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      if (!claimable(j, d)) continue;
      return "the policy \"" + std::string(options_.policy->name()) + "\" to choose " + next;
    }
    return "an update before " + next;
  }

  void at(Nanoseconds time, std::function<void()> happen) {
    events_.push({time, next_event_++, std::move(happen)});
  }

  bool done(std::size_t j) const { return jobs_[j].step == options_.jobs[j].steps; }

  bool claimable(std::size_t j, std::size_t d) const {
    const Job& job = jobs_[j];
    if (!job.arrived || job.claimed || done(j)) return false;
    if (job.flying_on && *job.flying_on != d) return false;
    const UnitOfStep& unit = job.units[job.unit];
    return unit.backward ? job.units.size() > 1 || job.settled[unit.shard] >= job.step
                         : job.settled[unit.shard] >= job.step;
  }

  JobView view_of(std::size_t j, std::size_t d) const {
    const Job& job = jobs_[j];
    const UnitOfStep& unit = job.units[job.unit];
    JobView view;
    view.id = JobId(static_cast<std::int64_t>(j));
    view.priority = options_.jobs[j].priority;
    view.remaining = job.remaining;
    view.unit = unit_time(options_.jobs[j], unit);
    if (!devices_[d].residents.holds({j, unit.shard})) {
      view.missing = options_.jobs[j].shards[unit.shard].parts;
    }
    if (job.last_device) view.last_device = DeviceId(static_cast<std::int64_t>(*job.last_device));
    view.units_served = job.served;
    view.units_waited = units_given_ - job.last_turn;
    view.running = job.flying_on.has_value();
    return view;
  }

  // As the coordinator does: idle devices first, and they may take over what a busy one has
  // claimed.
  void schedule() {
    for (const bool busy : {false, true}) {
      for (std::size_t d = 0; d < devices_.size(); ++d) {
        if (devices_[d].running.has_value() != busy) continue;
        serve(d);
      }
    }
  }

  void serve(std::size_t d) {
    Device& device = devices_[d];
    if (!device.next) choose(d);
    if (!device.next && !device.running && steal()) choose(d);
    if (!device.next) return;
    load(d);
    if (device.running || !device.next->loaded || jobs_[device.next->job].flying_on) return;
    start(d);
    choose(d);
    if (device.next) load(d);
  }

  void choose(std::size_t d) {
    std::vector<JobView> views;
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      if (claimable(j, d)) views.push_back(view_of(j, d));
    }
    if (views.empty()) return;
    const auto decision = options_.policy->choose({DeviceId(static_cast<std::int64_t>(d)), views});
    if (!decision) return;
    if (decision->job >= views.size()) {
      throw InvalidArgument("the policy \"" + std::string(options_.policy->name()) +
                            "\" chose job " + std::to_string(decision->job) + " of " +
                            std::to_string(views.size()) + " that it was offered");
    }
    const auto j = static_cast<std::size_t>(views[decision->job].id.value());
    jobs_[j].claimed = true;
    devices_[d].next = Claim{j, false, false, decision->reason};
  }

  bool steal() {
    for (Device& other : devices_) {
      if (!other.running || !other.next || jobs_[other.next->job].flying_on) continue;
      const std::size_t j = other.next->job;
      if (other.next->pinned) other.residents.unpin({j, jobs_[j].units[jobs_[j].unit].shard});
      jobs_[j].claimed = false;
      other.next.reset();
      return true;
    }
    return false;
  }

  void load(std::size_t d) {
    Device& device = devices_[d];
    Claim& claim = *device.next;
    if (claim.pinned) return;
    const std::size_t j = claim.job;
    const std::size_t shard = jobs_[j].units[jobs_[j].unit].shard;
    const Residents::Part part{j, shard};
    const bool there = device.residents.holds(part);
    const Bytes bytes = options_.jobs[j].shards[shard].parts;
    if (!there && !device.residents.add(part, bytes, [&](const auto& p) { return distance(p); })) {
      return;  // what runs holds the room
    }
    device.residents.pin(part);
    claim.pinned = true;
    const Nanoseconds time =
        there ? Nanoseconds(0) : transfer_time(bytes, options_.devices[d].link_bytes_per_second);
    // A copy that was claimed before may still be on its way: the link is in order.
    device.upload_free = std::max(device.upload_free, now_) + time;
    result_.devices[d].upload += time;
    if (time == Nanoseconds(0) && device.upload_free <= now_) {
      claim.loaded = true;
      return;
    }
    const std::int64_t served = jobs_[j].served;
    at(device.upload_free, [this, d, j, served] {
      std::optional<Claim>& next = devices_[d].next;
      if (next && next->job == j && next->pinned && jobs_[j].served == served) next->loaded = true;
    });
  }

  // How many units of its job pass before a part is needed again.
  std::size_t distance(const Residents::Part& part) const {
    const Job& job = jobs_[part.first];
    for (std::size_t ahead = 0; job.unit + ahead < job.units.size(); ++ahead) {
      if (job.units[job.unit + ahead].shard == part.second) return ahead;
    }
    return job.units.size() * 2;  // its update comes first
  }

  void start(std::size_t d) {
    Device& device = devices_[d];
    const std::size_t j = device.next->job;
    Job& job = jobs_[j];
    const UnitOfStep unit = job.units[job.unit];
    const Nanoseconds own = unit_time(options_.jobs[j], unit);
    const Nanoseconds time = scaled(own, options_.devices[d].speed);
    if (options_.keep_units) {
      result_.units.push_back({j, d, job.served, now_, now_ + time, device.next->reason});
    }
    device.running = j;
    device.next.reset();
    job.claimed = false;
    job.flying_on = d;
    job.last_device = d;
    job.remaining -= own;
    ++job.served;
    job.last_turn = ++units_given_;
    const std::int64_t step = job.step;
    if (++job.unit == job.units.size()) {
      job.unit = 0;
      ++job.step;
    }
    result_.devices[d].busy += time;
    at(now_ + time, [this, d, j, unit, step] { unit_ended(d, j, unit, step); });
  }

  void unit_ended(std::size_t d, std::size_t j, const UnitOfStep& unit, std::int64_t step) {
    Device& device = devices_[d];
    device.running.reset();
    jobs_[j].flying_on.reset();
    device.residents.unpin({j, unit.shard});
    if (!unit.backward) return;
    const SimulatedShard& shard = options_.jobs[j].shards[unit.shard];
    const Nanoseconds time =
        transfer_time(shard.gradients, options_.devices[d].link_bytes_per_second);
    device.download_free = std::max(device.download_free, now_) + time;
    result_.devices[d].download += time;
    at(device.download_free,
       [this, j, shard_number = unit.shard, step] { update(j, shard_number, step); });
  }

  void update(std::size_t j, std::size_t shard, std::int64_t step) {
    for (Device& device : devices_) device.residents.outdate({j, shard});
    auto& worker = *std::min_element(update_free_.begin(), update_free_.end());
    worker = std::max(worker, now_) + options_.jobs[j].shards[shard].update;
    at(worker, [this, j, shard, step] {
      jobs_[j].settled[shard] = step + 1;
      result_.job_ends[j] = now_;
    });
  }

  const SimulationOptions& options_;
  std::vector<Device> devices_;
  std::vector<Job> jobs_;
  std::vector<Nanoseconds> update_free_;
  std::priority_queue<Event> events_;
  std::int64_t next_event_ = 0;
  std::int64_t units_given_ = 0;
  Nanoseconds now_{0};
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(const SimulationOptions& options) {
  validate(options);
  return Simulator(options).run();
}

Nanoseconds makespan_lower_bound(const SimulationOptions& options) {
  validate(options);
  double speed = 0;
  double fastest = 0;
  double rate = 0;
  bool free_link = false;
  for (const SimulatedDevice& device : options.devices) {
    speed += device.speed;
    fastest = std::max(fastest, device.speed);
    rate += device.link_bytes_per_second;
    free_link = free_link || device.link_bytes_per_second <= 0;
  }
  Nanoseconds work{0};
  Nanoseconds longest{0};
  Bytes up;
  Bytes down;
  for (const SimulatedJob& job : options.jobs) {
    const Nanoseconds own = step_time(job) * job.steps;
    work += own;
    longest = std::max(longest, job.arrival + scaled(own, fastest));
    for (const SimulatedShard& shard : job.shards) {
      up += shard.parts * job.steps;
      down += shard.gradients * job.steps;
    }
  }
  const Nanoseconds links = free_link ? Nanoseconds(0) : transfer_time(std::max(up, down), rate);
  return std::max({scaled(work, speed), longest, links});
}

}  // namespace hydra
