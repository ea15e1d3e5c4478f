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
  store_ = std::make_unique<ShardStore>(
      options_.devices, [inbox = inbox_](TransferDone done) { inbox->push(std::move(done)); },
      options_.store);
  store_->set_next_use([this](PartId part) { return next_use(part); });
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
  auto shared = std::make_shared<JobShared>(
      id, prepared->options.name, prepared->options.max_steps, prepared->plan,
      [inbox = inbox_, id] { inbox->push(Cancel{id}); },
      [inbox = inbox_] { inbox->push(MemoryReleased{}); });
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
    start_updates();
    remove_ended_jobs();
    schedule();
    account_for_devices();
    if (stopping_ && jobs_.empty() && in_flight_.empty()) return;
  }
}

void Coordinator::fail_everything(std::exception_ptr failure) noexcept {
  options_.log->log(LogLevel::kError, "the coordinator stopped: " + message_of(failure));
  inbox_->close();
  for (const Slot& slot : slots_) slot.device->close();
  pool_->close();
  job_worker_->close();
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
  record->times = TimeModel(std::move(times));
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
  if (message.failure == nullptr) return;
  JobRecord* owner = find(store_->job_of(message.part));
  if (owner == nullptr || owner->ending) return;
  if (is_retryable(message.failure) && owner->transfer_retries++ == 0) {
    options_.log->log(LogLevel::kWarning, store_->label(message.part) + ": " +
                                              message_of(message.failure) + "; trying once more");
    return;  // whoever wants the part asks for it again
  }
  end(*owner, JobState::kFailed, message.failure);
}

void Coordinator::handle(MemoryReleased&) {}  // admit_jobs looks at the budget

void Coordinator::handle(LoaderClosed& message) { --job(message.job).in_flight; }

void Coordinator::handle(Stop&) {
  stopping_ = true;
  for (auto& [id, record] : jobs_) {
    if (record->ending || record->sealing) continue;
    end(*record, JobState::kCancelled,
        std::make_exception_ptr(Cancelled("the runtime was closed")));
  }
}

}  // namespace hydra
