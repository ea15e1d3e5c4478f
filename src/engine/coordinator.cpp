#include "engine/coordinator.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "hydra/core/check.h"

namespace hydra {
namespace {
InvalidArgument closed_error() { return InvalidArgument("the runtime is closed"); }

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
      time_left_(*options_.policy, options_.devices.size()),
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
  std::future<PilotResult> result;
  Pilot pilot;
  {
    // The message alone holds the promise, so that it is broken if the message goes unanswered.
    auto promise = std::make_shared<std::promise<PilotResult>>();
    result = promise->get_future();
    pilot.run = [&, promise](Device& device) {
      try {
        promise->set_value(hydra::run_pilot(model, schema, worst.inputs, worst.side,
                                            worst.loss_denominator, seed, device));
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    };
  }
  if (!inbox_->push(std::move(pilot))) throw closed_error();
  try {
    return result.get();
  } catch (const std::future_error&) {
    throw closed_error();
  }
}

Coordinator::Submitted Coordinator::submit(std::shared_ptr<const PreparedJob> prepared,
                                           JobInputs inputs) {
  const JobId id(next_job_++);
  JobShared::Requests requests;
  requests.cancel = [inbox = inbox_, id] { inbox->push(Cancel{id}); };
  requests.stop = [inbox = inbox_, id] { inbox->push(StopJob{id}); };
  requests.release = [inbox = inbox_, id] { inbox->push(WeightsReleased{id}); };
  requests.read_weights = [inbox = inbox_, id, prepared] {
    return read_weights(*inbox, id, *prepared);
  };
  auto shared = std::make_shared<JobShared>(id, prepared->options.name, prepared->options.max_steps,
                                            prepared->plan, std::move(requests));
  JobHandle handle(shared);  // holds the weights even if the job ends before we return
  if (!inbox_->push(Submit{std::move(prepared), std::move(inputs), shared})) throw closed_error();
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
    inbox_->close();
    answer_undelivered(JobState::kCancelled,
                       std::make_exception_ptr(Cancelled("the runtime was closed")));
  } catch (...) {  // a broken invariant: no job may be left waiting for ever
    fail_everything(std::current_exception());
    answer_undelivered(JobState::kFailed, std::current_exception());
  }
}

// Nobody may wait for an answer that will not come: jobs are failed here, and the promises of other
// requests break as their messages go.
void Coordinator::answer_undelivered(JobState state, std::exception_ptr failure) noexcept {
  for (Slot& slot : slots_) slot.pilots.clear();
  while (auto rest = inbox_->try_pop()) {
    const auto* submit = std::get_if<Submit>(&*rest);
    if (submit == nullptr) continue;  // the promise in it breaks
    submit->shared->fail(state, failure, options_.clock->now());
  }
}

void Coordinator::take_messages() {
  while (auto message = inbox_->pop()) {
    take(*message);
    message.reset();  // what it held is given back before anybody learns that a job has ended
    while (auto more = inbox_->try_pop()) take(*more);
    decide();
    account_for_devices();
    if (stopping_ && jobs_.empty() && in_flight_.empty() && walks_.empty()) return;
    if (!watched_) continue;
    HYDRA_CHECK(!inbox_->empty() || something_can_move(),
                "nothing is under way that could wake these jobs: " + where_jobs_stand());
  }
}

// The barrier: what goes wrong in a message of one job ends that job. A broken invariant may have
// left anything behind, and ends all of them.
void Coordinator::take(Message& message) {
  try {
    std::visit([this](auto& content) { handle(content); }, message);
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    const auto id = job_of(message);
    JobRecord* record = id ? find(*id) : nullptr;
    if (record == nullptr) throw;
    watched_ = true;  // what the message left undone must not be waited for
    end(*record, JobState::kFailed, std::current_exception());
  }
}

bool Coordinator::guarded(JobRecord& record, const std::function<void()>& call) {
  try {
    call();
    return true;
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    end(record, JobState::kFailed, std::current_exception());
    return false;
  }
}

std::optional<JobId> Coordinator::job_of(const Message& message) const {
  return std::visit(
      [this](const auto& content) -> std::optional<JobId> {
        if constexpr (requires { content.job; }) {
          return content.job;
        } else if constexpr (requires { content.unit; }) {
          const auto flight = in_flight_.find(content.unit);
          if (flight != in_flight_.end()) return flight->second.job;
        } else if constexpr (requires { content.shared; }) {
          return content.shared->id();
        } else if constexpr (requires { content.walk; }) {
          const auto walk = walks_.find(content.walk);
          if (walk != walks_.end()) return walk->second.job;
        } else if constexpr (requires { content.part; }) {
          return store_->job_of(content.part);
        }
        return std::nullopt;
      },
      message);
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
  record->inputs = std::move(message.inputs);
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

// What has begun is finished and updated: the weights are those of a job with fewer steps.
void Coordinator::handle(StopJob& message) {
  JobRecord* found = find(message.job);
  if (found == nullptr || found->ending || found->sealing) return;
  if (!found->active) {
    end(*found, JobState::kCancelled,
        std::make_exception_ptr(
            Cancelled("job \"" + found->shared->name() + "\" was stopped before its first step")));
    return;
  }
  const std::int64_t border = found->step + (found->step_begun ? 1 : 0);
  if (border >= found->end_step) return;  // it ends there by itself
  found->stopping = true;
  found->end_step = border;
}

void Coordinator::handle(Pilot& message) {
  if (stopping_) return;  // its promise is broken
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
  for (Slot& slot : slots_) slot.pilots.clear();  // their promises are broken
  const auto closed = std::make_exception_ptr(InvalidArgument("the runtime was closed"));
  for (const auto& [id, kept] : kept_) drop_walks_of(id, closed);
  for (auto& [id, record] : jobs_) {
    if (record->ending || record->sealing) continue;
    end(*record, JobState::kCancelled,
        std::make_exception_ptr(Cancelled("the runtime was closed")));
  }
}

}  // namespace hydra
