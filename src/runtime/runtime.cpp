#include "hydra/runtime/runtime.h"

#include <ATen/Version.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/coordinator.h"
#include "engine/job_setup.h"
#include "hydra/core/machine.h"
#include "hydra/core/mutex.h"
#include "hydra/model/cpu_allocator_shim.h"
#include "model/autograd_queue.h"
#include "runtime/step_reporter.h"
#include "runtime/torch_version.h"

namespace hydra {
namespace {

Bytes default_host_memory(const RuntimeOptions& options, const MachineLimits& machine) {
  Bytes devices;
  for (const auto& device : options.devices) devices += device.memory;
  const Bytes rest = Bytes(machine.memory.count() / 4 * 3) - devices;
  if (rest <= Bytes(0)) {
    throw InvalidArgument("the devices' budgets (" + to_string(devices) +
                          ") leave nothing of three quarters of the machine's memory (" +
                          to_string(machine.memory) + ", " + machine.memory_source +
                          ") to the host tier: lower them or set host_memory");
  }
  return rest;
}

void validate(const RuntimeOptions& options) {
  if (options.devices.empty()) {
    throw InvalidArgument("a runtime needs at least one device: fill RuntimeOptions::devices");
  }
  std::set<std::string> names;
  for (const auto& device : options.devices) {
    if (!names.insert(device.name).second) {
      throw InvalidArgument("two devices are named \"" + device.name + "\"");
    }
  }
  if (options.threads_per_device < 0 || options.update_threads < 1 || options.loader_depth < 1) {
    throw InvalidArgument(
        "threads_per_device must be 0 or more, update_threads and loader_depth at least 1; they "
        "are " +
        std::to_string(options.threads_per_device) + ", " + std::to_string(options.update_threads) +
        " and " + std::to_string(options.loader_depth));
  }
  if (options.host_memory < Bytes(0)) throw InvalidArgument("host_memory is negative");
  if (options.storage.host_cache < Bytes(0)) throw InvalidArgument("host_cache is negative");
  if (options.storage.drives.empty() && options.storage.host_cache > Bytes(0)) {
    throw InvalidArgument("host_cache is set and there is no storage: name a drive, or leave it 0");
  }
}

/// How much of the host memory is the cache over storage.
Bytes host_cache(const RuntimeOptions& options) {
  if (options.storage.drives.empty()) return Bytes(0);
  if (options.storage.host_cache == Bytes(0)) return Bytes(options.host_memory.count() / 2);
  if (options.storage.host_cache >= options.host_memory) {
    throw InvalidArgument("host_cache is " + to_string(options.storage.host_cache) +
                          ", host_memory " + to_string(options.host_memory) +
                          ": lower host_cache, which is a part of it, or raise host_memory");
  }
  return options.storage.host_cache;
}

/// Fills in what depends on the machine, and says what was found.
void fill_in(RuntimeOptions& options) {
  const MachineLimits machine = read_machine_limits();
  if (options.log != nullptr) options.log->log(LogLevel::kInfo, to_string(machine));
  if (options.host_memory == Bytes(0)) options.host_memory = default_host_memory(options, machine);
  if (options.threads_per_device == 0) {
    options.threads_per_device =
        std::max(1, machine.cores / static_cast<int>(options.devices.size()));
  }
}

/// What makes two jobs' pilots the same: the definition and the shapes of the micro-batch.
struct PilotKey {
  std::weak_ptr<const Model> model;
  std::vector<std::vector<std::int64_t>> shapes;

  bool matches(const std::shared_ptr<const Model>& other, const PilotKey& key) const {
    return model.lock() == other && shapes == key.shapes;
  }
};

PilotKey pilot_key(const std::shared_ptr<const Model>& model, const Batch& batch) {
  PilotKey key{model, {}};
  for (const auto& input : batch.inputs) key.shapes.push_back(input.sizes().vec());
  for (const auto& [name, tensor] : batch.side) key.shapes.push_back(tensor.sizes().vec());
  return key;
}

RunSummary::Device device_summary(const VirtualDevice& device, const DeviceStats& stats,
                                  const DeviceUse::Spent& spent, Nanoseconds wall) {
  const auto seconds_of = [&](Activity activity) {
    return seconds(spent[static_cast<std::size_t>(activity)]);
  };
  RunSummary::Device summary;
  summary.name = device.name();
  summary.budget = device.budget();
  summary.peak = stats.peak_in_use;
  summary.busy_share = wall > Nanoseconds(0) ? seconds_of(Activity::kBusy) / seconds(wall) : 0;
  summary.transfer_wait_seconds = seconds_of(Activity::kTransfer);
  summary.unit_wait_seconds = seconds_of(Activity::kUnit);
  summary.supply_wait_seconds = seconds_of(Activity::kInput);
  summary.idle_seconds = seconds_of(Activity::kIdle);
  return summary;
}

}  // namespace

struct Runtime::Impl {
  explicit Impl(RuntimeOptions given)
      : options(std::move(given)),
        host_budget("host", options.host_memory - host_cache(options)),
        cache_budget("host cache", host_cache(options)),
        host_arena(options.host_memory) {
    if (options.policy == nullptr) options.policy = make_sharded_lrtf_policy();
    if (options.trace == nullptr) options.trace = std::make_shared<NullTraceSink>();
    if (options.log == nullptr) options.log = std::make_shared<NullLogSink>();
    CoordinatorOptions coordinator_options;
    for (VirtualDeviceOptions& device : options.devices) {
      if (device.trace == nullptr && options.trace->enabled()) {
        device.trace = options.trace.get();
        device.clock = &clock;
      }
      devices.push_back(std::make_unique<VirtualDevice>(device));
      coordinator_options.devices.push_back(devices.back().get());
    }
    coordinator_options.host_budget = &host_budget;
    coordinator_options.host_arena = &host_arena;
    if (!options.storage.drives.empty()) {
      coordinator_options.storage = storage_options();
      coordinator_options.host_cache = &cache_budget;
    }
    coordinator_options.policy = options.policy.get();
    coordinator_options.clock = &clock;
    coordinator_options.trace = options.trace.get();
    coordinator_options.log = options.log.get();
    if (!options.metrics_file.empty() || !options.tensorboard_directory.empty()) {
      reporter = std::make_unique<StepReporter>(StepReporter::Options{
          options.metrics_file, options.tensorboard_directory, options.log.get()});
      coordinator_options.listener.ended = [this](JobId job) { reporter->ended(job); };
    }
    coordinator_options.listener.step = [this](JobId job, const std::string& name,
                                               const StepMetrics& metrics) {
      if (reporter != nullptr) reporter->step(job, name, metrics);
      if (options.debug.at_step_end) options.debug.at_step_end();
    };
    coordinator_options.threads_per_device = options.threads_per_device;
    coordinator_options.update_threads = options.update_threads;
    coordinator_options.loader_depth = options.loader_depth;
    coordinator_options.store.evict_at_once = options.debug.evict_at_once;
    coordinator_options.reverse_ready_order = options.debug.reverse_ready_order;
    coordinator = std::make_unique<Coordinator>(std::move(coordinator_options));
  }

  ~Impl() { close(); }

  void close() noexcept {
    coordinator->close();
    for (auto& device : devices) device->close();
    if (reporter == nullptr) return;
    const std::vector<std::string>& lost = reporter->finish();
    MutexLock lock(mutex);
    lost_outputs = lost;
  }

  // Names tell jobs apart wherever people and files see them.
  std::string take_name(const std::string& wanted) {
    MutexLock lock(mutex);
    std::string name = wanted;
    for (int number = 2; !names.insert(name).second; ++number) {
      name = wanted + " (" + std::to_string(number) + ")";
    }
    return name;
  }

  void give_back_name(const std::string& name) {
    MutexLock lock(mutex);
    names.erase(name);
  }

  std::vector<std::shared_ptr<JobShared>> all_submitted() const {
    MutexLock lock(mutex);
    return submitted;
  }

  ExtentStoreOptions storage_options() const {
    ExtentStoreOptions storage;
    storage.drives = options.storage.drives;
    storage.kind = options.storage.kind;
    storage.log = options.log.get();
    storage.trace = options.trace.get();
    storage.clock = &clock;
    storage.wrap = options.debug.wrap_drive;
    return storage;
  }

  MachineFacts machine() const {
    MachineFacts facts;
    facts.device_budget = devices.front()->budget();
    for (const auto& device : devices) {
      facts.device_budget = std::min(facts.device_budget, device->budget());
    }
    for (const auto& device : options.devices) {
      if (device.link_bytes_per_second <= 0) continue;
      facts.link_bytes_per_second =
          facts.link_bytes_per_second == 0
              ? device.link_bytes_per_second
              : std::min(facts.link_bytes_per_second, device.link_bytes_per_second);
    }
    facts.loader_depth = options.loader_depth;
    facts.storage = !options.storage.drives.empty();
    facts.allocation_size = [device = devices.front().get()](Bytes bytes) {
      return device->allocation_size(bytes);
    };
    return facts;
  }

  std::shared_ptr<const PreparedJob> prepare(const JobOptions& job) {
    auto prepared = prepare_job(
        job, machine(),
        [&](const Model& model, const ModelSchema& schema, const Batch& worst, std::uint64_t seed) {
          return pilot(job.model, model, schema, worst, seed);
        });
    const Bytes needed = prepared->state_bytes + prepared->step_bytes;
    if (needed > host_budget.capacity()) {
      throw OutOfHostMemory(
          "job \"" + job.name + "\" needs " + to_string(needed) + " of host memory (" +
          to_string(prepared->state_bytes) + " for its state, " + to_string(prepared->step_bytes) +
          " for a step), the host budget is " + to_string(host_budget.capacity()) +
          ": raise host_memory or train a smaller model or batch");
    }
    if (prepared->on_storage) check_storage(*prepared);
    return prepared;
  }

  void check_storage(const PreparedJob& job) const {
    const std::string name = "job \"" + job.options.name + "\" ";
    const Bytes storage = coordinator->storage_budget()->capacity();
    if (job.storage_bytes > storage) {
      throw StorageError(false, name + "needs " + to_string(job.storage_bytes) +
                                    " of storage for its parameters and moments, the drives have " +
                                    to_string(storage) + ": raise the storage size");
    }
    if (job.cache_bytes > cache_budget.capacity()) {
      throw OutOfHostMemory(name + "has " + to_string(job.cache_bytes) +
                            " of parts that are in the host at once, the host's cache over storage "
                            "is " +
                            to_string(cache_budget.capacity()) + ": raise host_cache");
    }
  }

  // Jobs of one definition and batch shape share one pilot.
  PilotResult pilot(const std::shared_ptr<const Model>& owner, const Model& model,
                    const ModelSchema& schema, const Batch& worst, std::uint64_t seed) {
    const PilotKey key = pilot_key(owner, worst);
    {
      MutexLock lock(mutex);
      for (const auto& [known, result] : pilots) {
        if (known.matches(owner, key)) return result;
      }
    }
    PilotResult result = coordinator->run_pilot(model, schema, worst, seed);
    MutexLock lock(mutex);
    std::erase_if(pilots, [](const auto& entry) { return entry.first.model.expired(); });
    pilots.emplace_back(key, result);
    return result;
  }

  RuntimeOptions options;
  SteadyClock clock;
  TierBudget host_budget;
  TierBudget cache_budget;
  HostArena host_arena;
  std::vector<std::unique_ptr<VirtualDevice>> devices;
  std::unique_ptr<StepReporter> reporter;  ///< outlives the coordinator, which reports to it
  std::unique_ptr<Coordinator> coordinator;

  mutable Mutex mutex;
  std::vector<std::shared_ptr<JobShared>> submitted HYDRA_GUARDED_BY(mutex);
  std::set<std::string> names HYDRA_GUARDED_BY(mutex);
  std::vector<std::string> lost_outputs HYDRA_GUARDED_BY(mutex);
  std::vector<std::pair<PilotKey, PilotResult>> pilots HYDRA_GUARDED_BY(mutex);
};

Runtime::Runtime(RuntimeOptions options) {
  check_torch_version();
  validate(options);
  fill_in(options);
  install_cpu_allocator_shim();
  // LibTorch makes objects of its own when they are first used. Those of a backward pass have to be
  // there before a runtime that is a static object, so that they die after it.
  release_autograd_queue();
  impl_ = std::make_unique<Impl>(std::move(options));
}

Runtime::~Runtime() = default;

Plan Runtime::plan(const JobOptions& job) { return impl_->prepare(job)->plan; }

JobHandle Runtime::submit(const JobOptions& job) {
  JobOptions named = job;
  named.name = impl_->take_name(job.name);
  try {
    Coordinator::Submitted submitted = impl_->coordinator->submit(
        impl_->prepare(named), {job.data, job.initial_weights, job.callbacks});
    MutexLock lock(impl_->mutex);
    impl_->submitted.push_back(std::move(submitted.shared));
    return std::move(submitted.handle);
  } catch (...) {
    impl_->give_back_name(named.name);
    throw;
  }
}

std::vector<JobHandle> Runtime::jobs() const {
  std::vector<JobHandle> handles;
  for (const auto& shared : impl_->all_submitted()) handles.emplace_back(shared);
  return handles;
}

// Not through handles: those would hold the weights of every job that has finished, and with them
// the memory that the next one waits for.
void Runtime::wait_all() {
  for (const auto& job : impl_->all_submitted()) job->wait();
}

void Runtime::stop_all() {
  for (const auto& job : impl_->all_submitted()) job->stop();
}

void Runtime::close() noexcept { impl_->close(); }

std::vector<JobStatus> Runtime::statuses() const {
  std::vector<JobStatus> statuses;
  for (const auto& shared : impl_->all_submitted()) statuses.push_back(shared->status());
  return statuses;
}

const TierBudget& Runtime::host_budget() const { return impl_->host_budget; }

const TierBudget& Runtime::host_cache_budget() const { return impl_->cache_budget; }

const TierBudget* Runtime::storage_budget() const { return impl_->coordinator->storage_budget(); }

std::vector<DeviceStats> Runtime::device_stats() const {
  std::vector<DeviceStats> stats;
  for (const auto& device : impl_->devices) stats.push_back(device->stats());
  return stats;
}

RunSummary Runtime::summary() const {
  RunSummary summary;
  const Nanoseconds now = impl_->clock.now();
  summary.wall_seconds = seconds(now);
  summary.identity = {impl_->options.threads_per_device, loaded_torch_version(),
                      at::get_cpu_capability()};
  for (const auto& shared : impl_->all_submitted()) {
    const JobStatus status = shared->status();
    RunSummary::Job job;
    job.name = status.name;
    job.state = to_string(status.state);
    job.reason = status.reason;
    for (const StepMetrics& step : shared->metrics()) {
      job.losses.push_back(step.loss);
      job.learning_rates.push_back(step.learning_rate);
    }
    job.tokens_per_second = status.tokens_per_second;
    job.seconds = seconds(status.elapsed);
    const bool has_weights =
        status.state == JobState::kCompleted || status.state == JobState::kStopped;
    if (has_weights) job.parameters_sha256 = shared->sha256();
    summary.jobs.push_back(std::move(job));
  }
  for (std::size_t d = 0; d < impl_->devices.size(); ++d) {
    const auto& device = impl_->devices[d];
    const DeviceStats stats = device->stats();
    summary.devices.push_back(
        device_summary(*device, stats, impl_->coordinator->device_use().spent(d, now), now));
    summary.links.push_back({"host to " + device->name(), stats.uploaded,
                             seconds(stats.upload_busy), seconds(stats.upload_hidden)});
    summary.links.push_back({device->name() + " to host", stats.downloaded,
                             seconds(stats.download_busy), seconds(stats.download_hidden)});
  }
  if (const ExtentStore* extents = impl_->coordinator->extents()) {
    const IoStats written = extents->stats(true);
    const IoStats read = extents->stats(false);
    summary.links.push_back({"host to storage", written.bytes, seconds(written.busy)});
    summary.links.push_back({"storage to host", read.bytes, seconds(read.busy)});
    for (const DriveStats& drive : extents->drive_stats()) {
      summary.drives.push_back({drive.directory, drive.read.bytes, drive.written.bytes,
                                seconds(drive.read.busy), seconds(drive.written.busy),
                                seconds(drive.both), drive.read.mean_depth,
                                drive.written.mean_depth});
    }
    summary.host_cache_budget = impl_->cache_budget.capacity();
    summary.host_cache_peak = impl_->cache_budget.peak();
    summary.storage_budget = impl_->coordinator->storage_budget()->capacity();
    summary.storage_peak = impl_->coordinator->storage_budget()->peak();
  }
  {
    MutexLock lock(impl_->mutex);
    summary.lost_outputs = impl_->lost_outputs;
  }
  summary.host_budget = impl_->host_budget.capacity();
  summary.host_peak = impl_->host_budget.peak();
  return summary;
}

}  // namespace hydra
