#include "engine/job_setup.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "engine/initial_values.h"
#include "hydra/core/check.h"
#include "hydra/core/glob.h"
#include "hydra/data/batch.h"
#include "hydra/io/extent_map.h"

namespace hydra {
namespace {

std::string first_parameter(const ModelSchema& schema) {
  for (const auto& layer : schema.layers) {
    if (!layer.parameters.empty()) return layer.parameters.front().full_name;
  }
  return "";
}

constexpr double kSmallestGradientNorm = 1e-12;

void validate(const JobOptions& options) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument("job \"" + options.name + "\": " + what);
  };
  if (options.name.empty()) throw InvalidArgument("a job needs a name: set JobOptions::name");
  if (options.model == nullptr) refuse("no model: set JobOptions::model");
  if (options.data == nullptr) refuse("no data: set JobOptions::data");
  if (options.max_steps < 1) {
    refuse("max_steps is " + std::to_string(options.max_steps) + ", must be at least 1");
  }
  if (options.micro_batch_size < 0) {
    refuse("micro_batch_size is " + std::to_string(options.micro_batch_size) +
           ", must be positive, or 0 for the whole mini-batch");
  }
  if (options.max_gradient_norm && !(*options.max_gradient_norm >= kSmallestGradientNorm)) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", *options.max_gradient_norm);
    refuse(std::string("max_gradient_norm is ") + text +
           ", must be at least 1e-12, below which clipped gradients are rounding errors; leave it "
           "unset, or infinite, for no clipping");
  }
  options.schedule.validate();
}

/// Refuses groups whose numbers are impossible, and patterns that name no parameter: a misspelt one
/// would train with other settings than were meant.
void validate_groups(const std::vector<ParameterGroup>& groups, const ModelSchema& schema) {
  for (const ParameterGroup& group : groups) {
    const auto refuse = [&](const std::string& what) {
      throw InvalidArgument("parameter group \"" + group.pattern + "\": " + what);
    };
    const auto require = [&](const char* name, double value) {
      if (std::isfinite(value) && value >= 0) return;
      refuse(std::string(name) + " is " + std::to_string(value) + ", must be 0 or more and finite");
    };
    require("learning_rate_scale", group.learning_rate_scale);
    if (group.weight_decay) require("weight_decay", *group.weight_decay);
    bool matches = false;
    for (const auto& layer : schema.layers) {
      for (const auto& parameter : layer.parameters) {
        matches = matches || glob_match(group.pattern, parameter.full_name);
      }
    }
    if (matches) continue;
    refuse("it matches no parameter of the model, whose first is \"" + first_parameter(schema) +
           "\": correct the pattern (* and ? stand for any characters), or leave the group out");
  }
}

Bytes tensors_bytes(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  Bytes total;
  for (const auto& [name, tensor] : tensors) {
    total += Bytes(static_cast<std::int64_t>(tensor.nbytes())).rounded_up(4096);
  }
  return total;
}

bool has_trainable(const ModelSchema& schema, const FlatLayout& layout) {
  if (!layout.trainable.empty()) return true;
  return std::any_of(layout.tied.begin(), layout.tied.end(), [&](const auto& use) {
    return !schema.ties[static_cast<std::size_t>(use.tie)].frozen;
  });
}

/// Calls `visit(tie, use entry index)` for every trainable use of a tie in the shard.
template <typename Visit>
void for_trainable_uses(const ModelSchema& schema, const FlatLayout& layout, Visit visit) {
  for (std::size_t i = 0; i < layout.tied.size(); ++i) {
    const auto tie = static_cast<std::size_t>(layout.tied[i].tie);
    if (!schema.ties[tie].frozen) visit(tie, i);
  }
}

Bytes gradient_bytes(const PreparedJob& job, std::size_t shard) {
  Bytes total = job.layouts[shard].trainable_bytes;
  for_trainable_uses(job.schema, job.layouts[shard], [&](std::size_t tie, std::size_t) {
    total += tie_bytes(job.schema, static_cast<std::int64_t>(tie));
  });
  return total;
}

/// A deferred job's gradients are in the host from its admission on, unless they never leave the
/// device.
bool keeps_gradients(const PreparedJob& job) { return job.deferred && !job.plan.fits_device; }

Bytes all_gradient_bytes(const PreparedJob& job) {
  Bytes total;
  if (job.plan.fits_device) return total;  // they never leave the device
  for (std::size_t s = 0; s < job.layouts.size(); ++s) total += gradient_bytes(job, s);
  return total;
}

Bytes parts_bytes(const std::vector<InitialStep>& steps) {
  Bytes total;
  for (const InitialStep& step : steps) total += step.bytes();
  return total;
}

// Extents are rounded up to the drives' blocks.
Bytes extents_bytes(const std::vector<InitialStep>& steps) {
  Bytes total;
  for (const InitialStep& step : steps) {
    for (const NewPart& part : step.parts) total += part.bytes.rounded_up(kExtentAlignment);
  }
  return total;
}

/// The most bytes of parts that are in the host at once: the values of a shard, when they are made
/// or read, or what an update changes.
Bytes largest_host_set(const PreparedJob& job, const std::vector<InitialStep>& steps) {
  const int slots = job.optimizer->state_slots();
  Bytes largest;
  for (const InitialStep& step : steps) largest = std::max(largest, step.bytes());
  for (const FlatLayout& layout : job.layouts) {
    largest = std::max(largest, layout.trainable_bytes * (1 + slots));
  }
  for (std::size_t tie = 0; tie < job.schema.ties.size(); ++tie) {
    const int copies = job.schema.ties[tie].frozen ? 1 : 1 + slots;
    largest = std::max(largest, tie_bytes(job.schema, static_cast<std::int64_t>(tie)) * copies);
  }
  return largest;
}

bool border_carries_gradient(const PreparedJob& job, std::size_t border) {
  return static_cast<std::int64_t>(border) >= job.first_trainable;
}

const std::vector<BoundaryTensor>& border_tensors(const PreparedJob& job, std::size_t border) {
  return job.pilot.outputs[static_cast<std::size_t>(job.layouts[border].end_layer - 1)];
}

Bytes boundary_bytes(const PreparedJob& job) {
  Bytes total;
  for (std::size_t border = 0; border + 1 < job.layouts.size(); ++border) {
    total += slot_bytes(border_tensors(job, border), false);
    if (border_carries_gradient(job, border))
      total += slot_bytes(border_tensors(job, border), true);
  }
  return total * job.plan.micro_batches;
}

/// Decides where the parts live and what each tier has to hold.
void plan_memory(PreparedJob& job, const MachineFacts& machine, const Batch& first) {
  const std::vector<InitialStep> steps = initial_steps(job);
  job.on_storage = machine.storage;
  if (job.on_storage) {
    job.storage_bytes = extents_bytes(steps);
    job.cache_bytes = largest_host_set(job, steps);
  } else {
    job.state_bytes = parts_bytes(steps);
  }
  for (std::size_t s = 0; s < job.layouts.size(); ++s) {
    job.state_bytes += bytes_beside_parts(job, s);
  }
  job.state_bytes += batch_bytes(first) * (machine.loader_depth + 2);
  job.step_bytes = boundary_bytes(job) + (job.deferred ? Bytes(0) : all_gradient_bytes(job));
  job.plan.host_state = job.state_bytes;
  job.plan.host_step = job.step_bytes;
  job.plan.storage = job.storage_bytes;
  job.plan.host_cache = job.cache_bytes;
}

PlanInput plan_input(const PreparedJob& job, const MachineFacts& machine, const Batch& first,
                     Bytes side_bytes) {
  PlanInput input;
  input.layers = job.pilot.layers;
  for (std::size_t tie = 0; tie < job.schema.ties.size(); ++tie) {
    input.ties.push_back(
        {tie_bytes(job.schema, static_cast<std::int64_t>(tie)), job.schema.ties[tie].frozen});
  }
  input.forced_cuts = job.schema.cuts;
  input.micro_batches = (first.rows + job.micro_batch_size - 1) / job.micro_batch_size;
  input.side_inputs = side_bytes;
  input.optimizer_state_slots = job.optimizer->state_slots();
  input.device_budget = machine.device_budget;
  input.link_bytes_per_second = machine.link_bytes_per_second;
  input.may_stay_on_device = !job.edits_gradients;
  input.allocation_size = machine.allocation_size;
  return input;
}

HostBuffer take(HostArena& arena, Reservation& grant, Bytes bytes) {
  return bytes > Bytes(0) ? arena.allocate(grant.split(bytes)) : HostBuffer();
}

HostBuffer take_zeroed(HostArena& arena, Reservation& grant, Bytes bytes) {
  HostBuffer buffer = take(arena, grant, bytes);
  if (buffer) std::memset(buffer.data(), 0, bytes.size());
  return buffer;
}

void apply_given_values(const ModelSchema& schema, const FlatLayout& layout,
                        const InitialValues& given, const ShardValues& values) {
  const auto apply_parameters = [&](const std::vector<FlatLayout::Entry>& entries,
                                    std::byte* memory) {
    for (const auto& entry : entries) {
      const auto& parameter = schema.layers[static_cast<std::size_t>(entry.layer)]
                                  .parameters[static_cast<std::size_t>(entry.parameter)];
      given.apply(parameter.full_name, memory + entry.offset.size());
    }
  };
  apply_parameters(layout.trainable, values.trainable);
  apply_parameters(layout.frozen, values.frozen);
  for (const auto& entry : layout.buffers) {
    const auto& buffer = schema.layers[static_cast<std::size_t>(entry.layer)]
                             .buffers[static_cast<std::size_t>(entry.parameter)];
    given.apply(buffer.full_name, values.buffers + entry.offset.size());
  }
  for (const auto& [t, memory] : values.ties) {
    given.apply(schema.ties[t].full_name, memory);
  }
}

/// Makes a shard's layers, one at a time, and writes their initial values.
std::unique_ptr<BoundShard> make_shard(const PreparedJob& prepared, const InitialValues& given,
                                       std::size_t shard, const ShardValues& values) {
  const FlatLayout& layout = prepared.layouts[shard];
  std::vector<std::shared_ptr<Layer>> layers;
  for (std::int64_t l = layout.first_layer; l < layout.end_layer; ++l) {
    layers.push_back(make_layer(*prepared.options.model, l, prepared.options.seed));
    store_initial_values(
        layout, l, *layers.back(), values.trainable, values.frozen, values.buffers,
        [&](std::int64_t tie) { return values.ties.at(static_cast<std::size_t>(tie)); });
    drop_values(*layers.back());
  }
  apply_given_values(prepared.schema, layout, given, values);
  return std::make_unique<BoundShard>(prepared.schema, layout, std::move(layers));
}

/// What a shard has in the host beside its parts.
void make_memory_beside(const PreparedJob& prepared, std::size_t shard, HostArena& arena,
                        Reservation& grant, InitialisedStep& made) {
  const FlatLayout& layout = prepared.layouts[shard];
  for (HostBuffer& buffers : made.buffers) {
    buffers = take_zeroed(arena, grant, layout.buffer_bytes);
  }
  if (!keeps_gradients(prepared)) return;
  made.gradients = take(arena, grant, layout.trainable_bytes);
  made.tied_gradients.resize(layout.tied.size());
  for_trainable_uses(prepared.schema, layout, [&](std::size_t tie, std::size_t use) {
    made.tied_gradients[use] =
        take(arena, grant, tie_bytes(prepared.schema, static_cast<std::int64_t>(tie)));
  });
}

ShardValues values_of(const InitialStep& step, const InitialisedStep& made) {
  ShardValues values;
  values.buffers = made.buffers[0].data();
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    std::byte* memory = made.parts[i].data();
    const NewPart& part = step.parts[i];
    if (part.role == NewPart::Role::kTrainable) values.trainable = memory;
    if (part.role == NewPart::Role::kFrozen) values.frozen = memory;
    if (part.role == NewPart::Role::kTie) values.ties[part.index] = memory;
  }
  return values;
}

/// Calls `visit(parameter, data)` for each parameter that a shard's values hold, in model order.
template <typename Visit>
void for_each_parameter(const PreparedJob& prepared, std::size_t shard, const ShardValues& values,
                        Visit visit) {
  const FlatLayout& layout = prepared.layouts[shard];
  std::map<std::pair<std::int64_t, std::int64_t>, const std::byte*> places;
  for (const auto& entry : layout.trainable) {
    places[{entry.layer, entry.parameter}] = values.trainable + entry.offset.size();
  }
  for (const auto& entry : layout.frozen) {
    places[{entry.layer, entry.parameter}] = values.frozen + entry.offset.size();
  }
  for (const auto& use : layout.tied) {
    if (use.use != 0) continue;
    places[{use.layer, use.parameter}] = values.ties.at(static_cast<std::size_t>(use.tie));
  }
  for (const auto& [place, data] : places) {
    const auto& layer = prepared.schema.layers[static_cast<std::size_t>(place.first)];
    visit(layer.parameters[static_cast<std::size_t>(place.second)], data);
  }
}

/// A tensor over part of a host buffer that keeps the whole buffer alive.
at::Tensor owning_view(const std::shared_ptr<HostBuffer>& memory, Bytes offset,
                       const std::vector<std::int64_t>& shape, c10::ScalarType type) {
  return at::from_blob(
      memory->data() + offset.size(), shape, [memory](void*) {}, at::TensorOptions().dtype(type));
}

}  // namespace

Bytes InitialStep::bytes() const {
  Bytes total;
  for (const NewPart& part : parts) total += part.bytes;
  return total;
}

std::shared_ptr<const PreparedJob> prepare_job(const JobOptions& options,
                                               const MachineFacts& machine,
                                               const PilotRunner& run_pilot) {
  validate(options);
  auto job = std::make_shared<PreparedJob>();
  job->options = options;
  job->options.data.reset();
  job->options.initial_weights.reset();
  job->options.callbacks.reset();
  if (options.max_gradient_norm && std::isinf(*options.max_gradient_norm)) {
    job->options.max_gradient_norm.reset();
  }
  job->schema = describe_model(*options.model);
  InitialValues(options.initial_weights.get(), job->schema);  // refuses what does not fit
  validate_groups(options.groups, job->schema);
  job->optimizer = make_optimizer(options.optimizer);
  job->edits_gradients = options.callbacks != nullptr && options.callbacks->edits_gradients();
  job->deferred = job->options.max_gradient_norm.has_value() || job->edits_gradients;

  Batch first = options.data->batch(0);
  validate_batch(first, 0);
  job->micro_batch_size =
      options.micro_batch_size == 0 ? first.rows : std::min(options.micro_batch_size, first.rows);
  const Batch worst = rows_of(first, 0, job->micro_batch_size);
  job->pilot = run_pilot(*options.model, job->schema, worst, options.seed);

  job->plan = make_plan(plan_input(*job, machine, first, tensors_bytes(worst.side)));
  for (const ShardPlan& shard : job->plan.shards) {
    job->layouts.push_back(make_layout(job->schema, shard.first_layer, shard.end_layer));
  }
  while (
      job->first_trainable < static_cast<std::int64_t>(job->layouts.size()) &&
      !has_trainable(job->schema, job->layouts[static_cast<std::size_t>(job->first_trainable)])) {
    ++job->first_trainable;
  }
  if (job->first_trainable == static_cast<std::int64_t>(job->layouts.size())) {
    throw InvalidArgument("job \"" + options.name +
                          "\": every parameter is frozen, there is nothing to train");
  }
  plan_memory(*job, machine, first);
  return job;
}

std::vector<InitialStep> initial_steps(const PreparedJob& prepared) {
  using Role = NewPart::Role;
  const int slots = prepared.optimizer->state_slots();
  std::vector<InitialStep> steps;
  const auto add = [](InitialStep& step, Role role, std::size_t index, Bytes bytes) {
    if (bytes > Bytes(0)) step.parts.push_back({role, index, bytes});
  };
  for (std::size_t s = 0; s < prepared.layouts.size(); ++s) {
    const FlatLayout& layout = prepared.layouts[s];
    InitialStep values{s, true, {}};
    std::vector<InitialStep> moments{{s, false, {}}};
    add(values, Role::kTrainable, s, layout.trainable_bytes);
    add(values, Role::kFrozen, s, layout.frozen_bytes);
    add(moments.front(), Role::kMoments, s, layout.trainable_bytes * slots);
    for (const auto& use : layout.tied) {
      if (use.use != 0) continue;
      const auto tie = static_cast<std::size_t>(use.tie);
      const Bytes size = tie_bytes(prepared.schema, use.tie);
      add(values, Role::kTie, tie, size);
      if (prepared.schema.ties[tie].frozen) continue;
      add(moments.emplace_back(InitialStep{s, false, {}}), Role::kTieMoments, tie, size * slots);
    }
    steps.push_back(std::move(values));
    for (InitialStep& step : moments) {
      if (!step.parts.empty()) steps.push_back(std::move(step));
    }
  }
  return steps;
}

Bytes bytes_beside_parts(const PreparedJob& prepared, std::size_t shard) {
  const Bytes gradients = keeps_gradients(prepared) ? gradient_bytes(prepared, shard) : Bytes(0);
  return prepared.layouts[shard].buffer_bytes * 2 + gradients;
}

InitialisedStep make_initial_step(const PreparedJob& prepared, const Weights* given,
                                  const InitialStep& step, HostArena& arena, Reservation room,
                                  Reservation beside) {
  InitialisedStep made;
  for (const NewPart& part : step.parts) {
    made.parts.push_back(take_zeroed(arena, room, part.bytes));
  }
  if (!step.values) return made;
  make_memory_beside(prepared, step.shard, arena, beside, made);
  made.modules = make_shard(prepared, InitialValues(given, prepared.schema), step.shard,
                            values_of(step, made));
  return made;
}

StepMemory make_step_memory(const PreparedJob& prepared, HostArena& arena, Reservation grant) {
  StepMemory memory;
  for (std::size_t border = 0; border + 1 < prepared.layouts.size(); ++border) {
    auto& activations = memory.activations.emplace_back();
    auto& gradients = memory.gradients.emplace_back();
    for (std::int64_t m = 0; m < prepared.plan.micro_batches; ++m) {
      activations.emplace_back(
          take(arena, grant, slot_bytes(border_tensors(prepared, border), false)));
      if (!border_carries_gradient(prepared, border)) continue;
      gradients.emplace_back(
          take(arena, grant, slot_bytes(border_tensors(prepared, border), true)));
    }
  }
  memory.rest = std::move(grant);
  return memory;
}

Weights collect_weights(const PreparedJob& prepared, std::vector<FinalShard> shards,
                        std::vector<HostBuffer> ties) {
  const ModelSchema& schema = prepared.schema;
  std::vector<std::vector<at::Tensor>> parameters(schema.layers.size());
  std::vector<std::vector<at::Tensor>> buffers(schema.layers.size());
  for (std::size_t l = 0; l < schema.layers.size(); ++l) {
    parameters[l].resize(schema.layers[l].parameters.size());
    buffers[l].resize(schema.layers[l].buffers.size());
  }
  const auto view_parameters = [&](const std::vector<FlatLayout::Entry>& entries,
                                   HostBuffer memory) {
    const auto shared = std::make_shared<HostBuffer>(std::move(memory));
    for (const auto& entry : entries) {
      const auto l = static_cast<std::size_t>(entry.layer);
      const auto p = static_cast<std::size_t>(entry.parameter);
      parameters[l][p] = owning_view(shared, entry.offset, schema.layers[l].parameters[p].shape,
                                     c10::ScalarType::Float);
    }
  };
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const FlatLayout& layout = prepared.layouts[s];
    view_parameters(layout.trainable, std::move(shards[s].trainable));
    view_parameters(layout.frozen, std::move(shards[s].frozen));
    const auto shared = std::make_shared<HostBuffer>(std::move(shards[s].buffers));
    for (const auto& entry : layout.buffers) {
      const auto l = static_cast<std::size_t>(entry.layer);
      const auto b = static_cast<std::size_t>(entry.parameter);
      buffers[l][b] = owning_view(shared, entry.offset, schema.layers[l].buffers[b].shape,
                                  schema.layers[l].buffers[b].type);
    }
  }
  std::vector<at::Tensor> tied;
  for (std::size_t tie = 0; tie < ties.size(); ++tie) {
    tied.push_back(owning_view(std::make_shared<HostBuffer>(std::move(ties[tie])), Bytes(0),
                               schema.ties[tie].shape, c10::ScalarType::Float));
  }
  Weights weights;
  for (std::size_t l = 0; l < schema.layers.size(); ++l) {
    for (std::size_t p = 0; p < schema.layers[l].parameters.size(); ++p) {
      const auto& parameter = schema.layers[l].parameters[p];
      if (!parameter.tie) {
        weights.emplace_back(parameter.full_name, parameters[l][p]);
      } else if (parameter.tie_use == 0) {
        weights.emplace_back(parameter.full_name, tied[static_cast<std::size_t>(*parameter.tie)]);
      }
    }
    for (std::size_t b = 0; b < schema.layers[l].buffers.size(); ++b) {
      weights.emplace_back(schema.layers[l].buffers[b].full_name, buffers[l][b]);
    }
  }
  return weights;
}

void add_to_digest(const PreparedJob& prepared, std::size_t shard, const ShardValues& values,
                   Sha256& digest) {
  for_each_parameter(prepared, shard, values, [&](const auto& parameter, const std::byte* data) {
    digest.update({data, static_cast<std::size_t>(parameter.elements) * sizeof(float)});
  });
}

Weights empty_weights(const ModelSchema& schema) {
  Weights weights;
  for (const auto& layer : schema.layers) {
    for (const auto& parameter : layer.parameters) {
      if (parameter.tie && parameter.tie_use != 0) continue;
      weights.emplace_back(parameter.full_name, at::empty(parameter.shape, at::kFloat));
    }
    for (const auto& buffer : layer.buffers) {
      weights.emplace_back(buffer.full_name, at::empty(buffer.shape, buffer.type));
    }
  }
  return weights;
}

void copy_values(const PreparedJob& prepared, std::size_t shard, const ShardValues& values,
                 Weights& weights) {
  std::map<std::string, at::Tensor*> targets;
  for (auto& [name, tensor] : weights) targets[name] = &tensor;
  const auto copy = [&](const std::string& name, const std::byte* data) {
    at::Tensor& target = *targets.at(name);
    if (target.nbytes() > 0) std::memcpy(target.data_ptr(), data, target.nbytes());
  };
  for_each_parameter(prepared, shard, values, [&](const auto& parameter, const std::byte* data) {
    copy(parameter.full_name, data);
  });
  for (const auto& entry : prepared.layouts[shard].buffers) {
    const auto& layer = prepared.schema.layers[static_cast<std::size_t>(entry.layer)];
    copy(layer.buffers[static_cast<std::size_t>(entry.parameter)].full_name,
         values.buffers + entry.offset.size());
  }
}

}  // namespace hydra
