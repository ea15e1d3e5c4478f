#include "engine/coordinator.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "hydra/core/check.h"

namespace hydra {
namespace {
// Completions are bounded by what is in flight; this is far beyond it.
constexpr std::size_t kInboxCapacity = 1 << 20;

bool is_retryable(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.retryable();
  } catch (...) {
    return false;
  }
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      use_(options_.devices.size(), options_.clock->now()),
      inbox_(std::make_shared<Inbox<Message>>(kInboxCapacity)) {
  ShardStore::Storage storage;
  if (options_.storage) {
    extents_ = std::make_unique<ExtentStore>(
        *options_.storage,
        [inbox = inbox_](ExtentStore::Done done) { inbox->push(std::move(done)); });
    storage_budget_.emplace("storage", extents_->capacity());
    storage = {extents_.get(), options_.host_cache, options_.host_arena};
  }
  store_ = std::make_unique<ShardStore>(
      options_.devices, [inbox = inbox_](TransferDone done) { inbox->push(std::move(done)); },
      options_.store, storage);
  store_->set_next_use([this](PartId part) { return next_use(part); });
  store_->set_next_host_use([this](PartId part) { return next_host_use(part); });
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    Slot slot;
    slot.device = options_.devices[i];
    slot.id = DeviceId(static_cast<std::int64_t>(i));
    slots_.push_back(std::move(slot));
    options_.devices[i]->submit(
        [threads = options_.threads_per_device] { at::set_num_threads(threads); });
  }
  pool_ = std::make_unique<TaskPool>(options_.update_threads);
  job_worker_ = std::make_unique<TaskPool>(1);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw SystemError(std::string("cannot start the coordinator: ") + error.what());
  }
}

Coordinator::~Coordinator() { close(); }

PilotResult Coordinator::run_pilot(const Model& model, const ModelSchema& schema,
                                   const Batch& worst, std::uint64_t seed) {
  auto promise = std::make_shared<std::promise<PilotResult>>();
  auto result = promise->get_future();
  Pilot pilot{[&, promise](Device& device) {
    try {
      promise->set_value(hydra::run_pilot(model, schema, worst.inputs, worst.side,
                                          worst.loss_denominator, seed, device));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }};
  if (!inbox_->push(std::move(pilot))) throw InvalidArgument("the runtime is closed");
  return result.get();
}

Coordinator::Submitted Coordinator::submit(std::shared_ptr<const PreparedJob> prepared) {
  const JobId id(next_job_++);
  JobShared::Requests requests;
  requests.cancel = [inbox = inbox_, id] { inbox->push(Cancel{id}); };
  requests.release = [inbox = inbox_, id] { inbox->push(WeightsReleased{id}); };
  requests.read_weights = [inbox = inbox_, id, prepared] {
    return read_weights(*inbox, id, *prepared);
  };
  auto shared = std::make_shared<JobShared>(id, prepared->options.name, prepared->options.max_steps,
                                            prepared->plan, std::move(requests));
  JobHandle handle(shared);  // holds the weights even if the job ends before we return
  if (!inbox_->push(Submit{std::move(prepared), shared})) {
    throw InvalidArgument("the runtime is closed");
  }
  return {std::move(shared), std::move(handle)};
}

void Coordinator::close() noexcept {
  std::call_once(closed_, [this] {
    inbox_->push(Stop{});
    if (thread_.joinable()) thread_.join();
    pool_->close();
    job_worker_->close();
    walks_.clear();  // whoever still waits for one hears that it will not come
    if (extents_) extents_->close();
  });
}

void Coordinator::run() {
  try {
    take_messages();
  } catch (...) {  // a broken invariant: no job may be left waiting for ever
    fail_everything(std::current_exception());
  }
  inbox_->close();
  while (auto rest = inbox_->try_pop()) {
  }
}

void Coordinator::take_messages() {
  while (auto message = inbox_->pop()) {
    std::visit([this](auto& content) { handle(content); }, *message);
    while (auto more = inbox_->try_pop()) {
      std::visit([this](auto& content) { handle(content); }, *more);
    }
    message.reset();  // what it held is given back before anybody learns that a job has ended
    decide();
    account_for_devices();
    if (stopping_ && jobs_.empty() && in_flight_.empty() && walks_.empty()) return;
  }
}

// What ends gives room back without a message, and what waits for room in the host may have it
// then.
void Coordinator::decide() {
  start_host_work();
  do {
    remove_ended_jobs();
    schedule();
  } while (start_host_work());
  prefetch_ahead();
}

// True when anything was started.
bool Coordinator::start_host_work() {
  const bool updates = start_updates();
  const bool steps = start_initial_steps();
  const bool walks = advance_walks();
  return updates || steps || walks;
}

void Coordinator::fail_everything(std::exception_ptr failure) noexcept {
  options_.log->log(LogLevel::kError, "the coordinator stopped: " + message_of(failure));
  inbox_->close();
  for (const Slot& slot : slots_) slot.device->close();
  pool_->close();
  job_worker_->close();
  walks_.clear();
  for (auto& [id, record] : jobs_) {
    record->shared->fail(JobState::kFailed, failure, options_.clock->now());
  }
}

JobRecord* Coordinator::find(JobId id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second.get();
}

JobRecord& Coordinator::job(JobId id) {
  JobRecord* found = find(id);
  HYDRA_CHECK(found != nullptr, "no such job: " + std::to_string(id.value()));
  return *found;
}

void Coordinator::handle(Submit& message) {
  auto record = std::make_unique<JobRecord>();
  record->id = message.shared->id();
  record->shared = message.shared;
  record->prepared = message.prepared;
  record->program = step_program(static_cast<std::int64_t>(message.prepared->layouts.size()),
                                 message.prepared->first_trainable);
  std::vector<Nanoseconds> times;
  for (const Unit& unit : record->program) {
    times.push_back(planned_time(message.prepared->plan, unit));
  }
  record->times = TimeModel(times);
  record->end_step = message.prepared->options.max_steps;
  record->rates = StepRates(message.prepared->options.schedule);
  JobRecord& job = *record;
  jobs_.emplace(job.id, std::move(record));
  if (stopping_) {
    end(job, JobState::kCancelled, std::make_exception_ptr(Cancelled("the runtime was closed")));
  }
}

void Coordinator::handle(Cancel& message) {
  JobRecord* found = find(message.job);
  if (found == nullptr || found->ending || found->sealing) return;
  end(*found, JobState::kCancelled,
      std::make_exception_ptr(Cancelled("job \"" + found->shared->name() +
                                        "\" was cancelled at step " +
                                        std::to_string(found->step))));
}

void Coordinator::handle(Pilot& message) {
  const auto smallest = std::min_element(
      slots_.begin(), slots_.end(),
      [](const Slot& a, const Slot& b) { return a.device->budget() < b.device->budget(); });
  smallest->pilots.push_back(std::move(message));
}

void Coordinator::handle(PilotDone& message) { slot(message.device).piloting = false; }

void Coordinator::handle(BatchReady&) {}  // begin_steps looks at every loader

void Coordinator::handle(TransferDone& message) {
  store_->finish(message);
  if (message.failure != nullptr) transfer_failed(message);
}

void Coordinator::handle(ExtentStore::Done& message) {
  if (const auto failed = store_->finish(message)) transfer_failed(*failed);
}

// A transfer is tried once more by whoever wants the part and asks for it again.
void Coordinator::transfer_failed(const TransferDone& done) {
  const JobId id = store_->job_of(done.part);
  JobRecord* owner = find(id);
  const auto kept = kept_.find(id);
  if (owner != nullptr ? owner->ending.has_value() : kept == kept_.end()) return;
  std::int64_t& retries = owner != nullptr ? owner->transfer_retries : kept->second.retries;
  if (!done.retried && is_retryable(done.failure) && retries++ == 0) {
    options_.log->log(LogLevel::kWarning, store_->label(done.part) + ": " +
                                              message_of(done.failure) + "; trying once more");
  } else if (owner != nullptr) {
    end(*owner, JobState::kFailed, done.failure);
  } else {
    kept_part_failed(kept->second, id, done);
  }
}

void Coordinator::handle(LoaderClosed& message) { --job(message.job).in_flight; }

void Coordinator::handle(Stop&) {
  stopping_ = true;
  const auto closed = std::make_exception_ptr(InvalidArgument("the runtime was closed"));
  for (const auto& [id, kept] : kept_) drop_walks_of(id, closed);
  for (auto& [id, record] : jobs_) {
    if (record->ending || record->sealing) continue;
    end(*record, JobState::kCancelled,
        std::make_exception_ptr(Cancelled("the runtime was closed")));
  }
}

}  // namespace hydra
