#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <cmath>
#include <map>
#include <utility>

#include "engine/coordinator.h"

namespace hydra {
namespace {

/// Runs user code and returns what it threw as a CallbackError, or null.
template <typename Call>
std::exception_ptr failure_of(const std::string& what, Call call) {
  try {
    call();
  } catch (const CallbackError&) {
    return std::current_exception();
  } catch (...) {
    return std::make_exception_ptr(
        CallbackError(what + " threw: " + message_of(std::current_exception())));
  }
  return nullptr;
}

std::string callback_name(const JobRecord& record, const char* function, std::int64_t step) {
  return "job \"" + record.shared->name() + "\": " + function + " of step " + std::to_string(step);
}

Gradients tensors_of(const std::vector<GradientView>& views) {
  Gradients gradients;
  for (const GradientView& view : views) {
    gradients.emplace_back(view.name, at::from_blob(view.data, view.shape, at::kFloat));
  }
  return gradients;
}

void require_possible(const StepDecision& decision, const std::string& what) {
  if (!decision.learning_rate) return;
  if (std::isfinite(*decision.learning_rate) && *decision.learning_rate >= 0) return;
  throw CallbackError(what + " set the learning rate " + std::to_string(*decision.learning_rate) +
                      ", must be 0 or more and finite");
}

}  // namespace

void Coordinator::start_callback_worker(JobRecord& record) {
  record.callback_worker = std::make_unique<TaskPool>(1);
  record.callback_worker->submit(
      [threads = options_.threads_per_device] { at::set_num_threads(threads); });
}

// What a callback decides holds from the next step on, so that step waits for it, and for the norm
// that it is told.
bool Coordinator::waits_for_callback(const JobRecord& record) const {
  return record.step_told || (record.callback_worker != nullptr && record.unreported);
}

void Coordinator::tell_step(JobRecord& record, const StepMetrics& metrics) {
  record.step_told = true;
  ++record.in_flight;
  record.callback_worker->submit([this, job = record.id, metrics,
                                  callbacks = record.inputs.callbacks,
                                  name = callback_name(record, "on_step", metrics.step)] {
    const Nanoseconds start = options_.clock->now();
    StepTold done{job, metrics.step, {}, nullptr};
    done.failure = failure_of(name, [&] {
      done.decision = callbacks->on_step(metrics);
      require_possible(done.decision, name);
    });
    trace_task("callbacks", "callback", name, start);
    post(std::move(done));
  });
}

void Coordinator::handle(StepTold& message) {
  JobRecord& record = job(message.job);
  --record.in_flight;
  record.step_told = false;
  if (record.ending) return;
  if (message.failure != nullptr) {
    end(record, JobState::kFailed, message.failure);
    return;
  }
  const StepDecision& decision = message.decision;
  if (decision.learning_rate || decision.follow_schedule) {
    record.rates.change(message.step + 1, decision.learning_rate);
  }
  if (decision.stop) record.end_step = message.step + 1;
}

std::vector<GradientView> Coordinator::gradient_views(const JobRecord& record) const {
  const PreparedJob& prepared = *record.prepared;
  std::map<std::pair<std::size_t, std::size_t>, GradientView> untied;  // by layer and parameter
  for (std::size_t s = 0; s < record.shards.size(); ++s) {
    const auto& entries = prepared.layouts[s].trainable;
    for (std::size_t i = 0; i < record.shards[s].touched.size(); ++i) {
      if (!record.shards[s].touched[i]) continue;
      GradientView view;
      std::byte* data = record.shards[s].gradients.data() + entries[i].offset.size();
      view.data = reinterpret_cast<float*>(data);
      view.elements = entries[i].elements;
      view.shard = s;
      view.entry = i;
      untied[{static_cast<std::size_t>(entries[i].layer),
              static_cast<std::size_t>(entries[i].parameter)}] = view;
    }
  }
  std::vector<GradientView> views;
  for (std::size_t l = 0; l < prepared.schema.layers.size(); ++l) {
    const auto& parameters = prepared.schema.layers[l].parameters;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      GradientView view;
      if (const auto found = untied.find({l, p}); found != untied.end()) {
        view = found->second;
      } else if (parameters[p].tie && parameters[p].tie_use == 0) {
        view.tie = static_cast<std::size_t>(*parameters[p].tie);
        view.data = record.ties[*view.tie].gradient;
        view.elements = prepared.schema.ties[*view.tie].elements;
      }
      if (view.data == nullptr) continue;
      view.name = parameters[p].full_name;
      view.shape = parameters[p].shape;
      views.push_back(std::move(view));
    }
  }
  return views;
}

void Coordinator::edit_gradients(JobRecord& record) {
  ++record.in_flight;
  ++record.updates_outstanding;
  record.callback_worker->submit(
      [this, job = record.id, step = record.update_step,
       views = std::make_shared<std::vector<GradientView>>(gradient_views(record)),
       callbacks = record.inputs.callbacks,
       name = callback_name(record, "on_gradients", record.update_step)] {
        const Nanoseconds start = options_.clock->now();
        GradientsEdited done{job, views, nullptr};
        done.failure = failure_of(name, [&] { callbacks->on_gradients(step, tensors_of(*views)); });
        for (GradientView& view : *views) view.square_sum = square_sum(view.data, view.elements);
        trace_task("callbacks", "callback", name, start);
        post(std::move(done));
      });
}

void Coordinator::handle(GradientsEdited& message) {
  JobRecord& record = job(message.job);
  --record.in_flight;
  --record.updates_outstanding;
  if (record.ending) return;
  if (message.failure != nullptr) {
    end(record, JobState::kFailed, message.failure);
    return;
  }
  for (const GradientView& view : *message.views) {
    if (view.tie) {
      record.squares->set_tie(static_cast<std::int64_t>(*view.tie), view.square_sum);
    } else {
      record.shards[view.shard].square_sums[view.entry] = view.square_sum;
    }
  }
  for (std::size_t s = 0; s < record.shards.size(); ++s) {
    if (record.shards[s].square_sums.empty()) continue;  // nothing to train there
    record.squares->set(record.prepared->layouts[s], record.shards[s].square_sums);
  }
  update_with_whole_gradient(record);
}

}  // namespace hydra
