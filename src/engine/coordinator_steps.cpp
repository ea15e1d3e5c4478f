#include <algorithm>
#include <utility>

#include "engine/coordinator.h"
#include "hydra/data/batch.h"

namespace hydra {
namespace {

/// Host memory of gradients that lives for one step (jobs that update eagerly).
void take_gradient_memory(JobRecord& record, HostArena& arena, Reservation& grant) {
  const PreparedJob& prepared = *record.prepared;
  const auto take = [&](Bytes bytes) {
    return bytes > Bytes(0) ? arena.allocate(grant.split(bytes)) : HostBuffer();
  };
  for (std::size_t s = 0; s < record.shards.size(); ++s) {
    const FlatLayout& layout = prepared.layouts[s];
    record.shards[s].gradients = take(layout.trainable_bytes);
    for (std::size_t i = 0; i < layout.tied.size(); ++i) {
      const std::int64_t tie = layout.tied[i].tie;
      if (prepared.schema.ties[static_cast<std::size_t>(tie)].frozen) continue;
      record.shards[s].tied_gradients[i] = take(tie_bytes(prepared.schema, tie));
    }
  }
}

}  // namespace

// A job that begins to wait may want what another at its border keeps, so a new waiter means
// another round; each job begins to wait at most once per round of tickets, so the rounds end.
void Coordinator::begin_steps() {
  std::int64_t tickets = 0;
  do {
    tickets = next_ticket_;
    begin_steps_in_turn();
  } while (next_ticket_ != tickets);
}

void Coordinator::begin_steps_in_turn() {
  std::vector<JobRecord*> at_border;
  for (auto& [id, record] : jobs_) {
    if (record->active && !record->step_begun && record->flying.empty() &&
        record->step < record->end_step) {
      at_border.push_back(record.get());
    }
  }
  give_back_memory_that_others_want(at_border);
  // Those that wait for host memory come first, in the order in which they began to wait.
  std::stable_sort(at_border.begin(), at_border.end(), [](const auto* a, const auto* b) {
    const auto place = [](const JobRecord* record) {
      return record->memory_ticket > 0 ? record->memory_ticket
                                       : std::numeric_limits<std::int64_t>::max();
    };
    return place(a) < place(b);
  });
  for (JobRecord* record : at_border) {
    try {
      begin_step(*record);
    } catch (...) {
      end(*record, JobState::kFailed, std::current_exception());
    }
  }
}

bool Coordinator::begin_step(JobRecord& record) {
  if (waits_for_callback(record) || !take_batch(record) || !take_step_memory(record)) return false;
  record.step_begun = true;
  record.next_unit = 0;
  record.loss = 0;
  return true;
}

bool Coordinator::take_batch(JobRecord& record) {
  if (record.batch != nullptr) return true;
  Batch batch;
  if (!record.loader->try_take(batch)) return false;
  validate_batch(batch, record.step);
  const std::int64_t most = record.prepared->plan.micro_batches * record.prepared->micro_batch_size;
  if (batch.rows > most) {
    throw DataError("the batch of step " + std::to_string(record.step) + " has " +
                    std::to_string(batch.rows) + " rows, the first batch allows " +
                    std::to_string(most) +
                    ": let the data source give its largest batch at step 0");
  }
  record.batch = std::make_shared<Batch>(std::move(batch));
  return true;
}

// A job keeps its step's memory from step to step while nobody else wants it. This comes before
// anybody is served: what is given back later would find the waiters asleep.
void Coordinator::give_back_memory_that_others_want(const std::vector<JobRecord*>& at_border) {
  for (JobRecord* record : at_border) {
    const bool settled = record->undrained == 0 && record->updates_outstanding == 0;
    if (record->memory && settled && others_wait_for_memory(*record)) release_step_memory(*record);
  }
}

bool Coordinator::others_wait_for_memory(const JobRecord& record) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const JobRecord& other = *entry.second;
    return &other != &record && other.memory_ticket > 0 && !other.ending;
  });
}

// All of a step's host memory at once, or none, so that nobody waits while holding part of what
// another needs. A job that still drains what others want waits with it for the moment.
bool Coordinator::take_step_memory(JobRecord& record) {
  if (record.memory) return !others_wait_for_memory(record);
  const bool my_turn = std::none_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const JobRecord& other = *entry.second;
    return &other != &record && other.memory_ticket > 0 && !other.ending &&
           (record.memory_ticket == 0 || other.memory_ticket < record.memory_ticket);
  });
  auto grant = my_turn ? options_.host_budget->try_reserve(record.prepared->step_bytes)
                       : std::optional<Reservation>();
  if (!grant) {
    if (record.memory_ticket == 0) record.memory_ticket = next_ticket_++;
    return false;
  }
  record.memory_ticket = 0;
  if (!record.prepared->deferred && !record.prepared->plan.fits_device) {
    take_gradient_memory(record, *options_.host_arena, *grant);
  }
  record.memory = make_step_memory(*record.prepared, *options_.host_arena, std::move(*grant));
  return true;
}

void Coordinator::release_step_memory(JobRecord& record) {
  record.memory.reset();
  if (record.prepared->deferred) return;
  for (ShardRecord& shard : record.shards) {
    shard.gradients.release();
    for (HostBuffer& gradients : shard.tied_gradients) gradients.release();
  }
}

void Coordinator::advance(JobRecord& record) {
  if (record.next_unit < record.program.size() || !record.flying.empty()) return;
  end_step(record);
}

void Coordinator::end_step(JobRecord& record) {
  // A deferred step is reported when its norm is known.
  if (!record.prepared->deferred || record.prepared->plan.fits_device) {
    report_step(record, record.step, record.loss, record.resident_norm, record.batch->tokens);
  } else {
    record.unreported = {record.step, record.loss, record.batch->tokens};
  }
  record.present_buffers = 1 - record.present_buffers;
  record.batch.reset();
  record.step_begun = false;
  record.next_unit = 0;
  ++record.step;
}

void Coordinator::report_step(JobRecord& record, std::int64_t step, double loss,
                              double gradient_norm, std::int64_t tokens) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = loss;
  metrics.learning_rate = record.rates.at(step);
  metrics.gradient_norm = record.prepared->deferred ? gradient_norm : 0;
  metrics.tokens = tokens;
  metrics.end = options_.clock->now();
  record.shared->add_metrics(metrics);
  forecast(metrics.end);
  if (options_.listener.step) options_.listener.step(record.id, record.shared->name(), metrics);
  if (record.callback_worker != nullptr) tell_step(record, metrics);
}

// When each job will have ended is a matter of all of them. It is for people, so now and then will
// do.
void Coordinator::forecast(Nanoseconds now) {
  constexpr Nanoseconds kOften = std::chrono::milliseconds(200);
  constexpr std::int64_t kManySteps = std::int64_t{1} << 40;
  if (forecast_at_ && now - *forecast_at_ < kOften) return;
  forecast_at_ = now;
  std::vector<ForecastJob> present;
  std::vector<JobRecord*> records;
  for (const auto& [id, record] : jobs_) {
    if (record->ending || record->sealing) continue;
    ForecastJob job;
    job.id = id;
    job.priority = record->prepared->options.priority;
    job.remaining = remaining_time(*record);
    job.units_left = std::min<std::int64_t>(steps_after(*record), kManySteps) *
                     static_cast<std::int64_t>(record->program.size());
    job.units_served = record->units_served;
    job.rolls = !record->prepared->plan.fits_device && record->prepared->plan.micro_batches > 1;
    present.push_back(job);
    records.push_back(record.get());
  }
  const std::vector<Nanoseconds> left = time_left_.estimate(now, present);
  for (std::size_t j = 0; j < left.size(); ++j) records[j]->shared->expect_end_in(left[j]);
}

std::int64_t Coordinator::steps_after(const JobRecord& record) {
  return std::max<std::int64_t>(record.end_step - record.step - (record.step_begun ? 1 : 0), 0);
}

Nanoseconds Coordinator::remaining_time(const JobRecord& record) const {
  constexpr double kLongest = 9e18;  // ns: 285 years, beyond which it does not matter
  double step = 0;
  double rest = 0;
  for (std::size_t u = 0; u < record.program.size(); ++u) {
    const auto time = static_cast<double>(record.times.predict(u).count());
    step += time;
    if (u >= record.next_unit) rest += time;
  }
  const double left =
      step * static_cast<double>(steps_after(record)) + (record.step_begun ? rest : 0);
  return Nanoseconds(static_cast<std::int64_t>(std::min(left, kLongest)));
}

}  // namespace hydra
