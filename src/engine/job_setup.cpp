#include "engine/job_setup.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "hydra/core/check.h"
#include "hydra/core/glob.h"
#include "hydra/core/sha256.h"
#include "hydra/data/batch.h"

namespace hydra {
namespace {

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
  if (options.max_gradient_norm &&
      !(std::isfinite(*options.max_gradient_norm) && *options.max_gradient_norm > 0)) {
    refuse("max_gradient_norm is " + std::to_string(*options.max_gradient_norm) +
           ", must be positive and finite, or unset for no clipping");
  }
  options.schedule.validate();
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

Bytes all_gradient_bytes(const PreparedJob& job) {
  Bytes total;
  if (job.plan.fits_device) return total;  // they never leave the device
  for (std::size_t s = 0; s < job.layouts.size(); ++s) total += gradient_bytes(job, s);
  return total;
}

Bytes state_bytes(const PreparedJob& job) {
  const int slots = job.optimizer->state_slots();
  Bytes total;
  for (const FlatLayout& layout : job.layouts) {
    total += layout.trainable_bytes * (1 + slots) + layout.frozen_bytes + layout.buffer_bytes * 2;
  }
  for (std::size_t tie = 0; tie < job.schema.ties.size(); ++tie) {
    const Bytes size = tie_bytes(job.schema, static_cast<std::int64_t>(tie));
    total += job.schema.ties[tie].frozen ? size : size * (1 + slots);
  }
  return total;
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

/// Replaces the initial value of a parameter or buffer when the user gave one.
class InitialValues {
 public:
  explicit InitialValues(const JobOptions& options) {
    if (options.initial_weights == nullptr) return;
    for (const auto& [name, tensor] : *options.initial_weights) given_[name] = &tensor;
  }

  void apply(const std::string& full_name, const std::vector<std::int64_t>& shape,
             c10::ScalarType type, std::byte* target) const {
    const auto found = given_.find(full_name);
    if (found == given_.end()) return;
    const at::Tensor& tensor = *found->second;
    if (tensor.sizes().vec() != shape || tensor.scalar_type() != type) {
      throw InvalidArgument("initial weight \"" + full_name +
                            "\" has another shape or type than the model's parameter");
    }
    const at::Tensor contiguous = tensor.contiguous();
    std::memcpy(target, contiguous.const_data_ptr(), contiguous.nbytes());
  }

  void require_known(const ModelSchema& schema) const {
    for (const auto& [name, tensor] : given_) {
      if (!is_known(schema, name)) {
        throw InvalidArgument("initial weight \"" + name + "\" names nothing in the model");
      }
    }
  }

 private:
  static bool is_known(const ModelSchema& schema, const std::string& name) {
    for (const auto& layer : schema.layers) {
      for (const auto& parameter : layer.parameters) {
        if (parameter.full_name == name) return true;
      }
      for (const auto& buffer : layer.buffers) {
        if (buffer.full_name == name) return true;
      }
    }
    return false;
  }

  std::map<std::string, const at::Tensor*> given_;
};

void apply_given_values(const ModelSchema& schema, const FlatLayout& layout,
                        const InitialValues& given, const InitialisedShard& shard,
                        const std::vector<InitialisedTie>& ties) {
  const auto apply_parameters = [&](const std::vector<FlatLayout::Entry>& entries,
                                    const HostBuffer& memory) {
    for (const auto& entry : entries) {
      const auto& parameter = schema.layers[static_cast<std::size_t>(entry.layer)]
                                  .parameters[static_cast<std::size_t>(entry.parameter)];
      given.apply(parameter.full_name, parameter.shape, c10::ScalarType::Float,
                  memory.data() + entry.offset.size());
    }
  };
  apply_parameters(layout.trainable, shard.trainable);
  apply_parameters(layout.frozen, shard.frozen);
  for (const auto& entry : layout.buffers) {
    const auto& buffer = schema.layers[static_cast<std::size_t>(entry.layer)]
                             .buffers[static_cast<std::size_t>(entry.parameter)];
    given.apply(buffer.full_name, buffer.shape, buffer.type,
                shard.buffers[0].data() + entry.offset.size());
  }
  for (const auto& use : layout.tied) {
    if (use.use != 0) continue;
    const auto& tie = schema.ties[static_cast<std::size_t>(use.tie)];
    given.apply(tie.full_name, tie.shape, c10::ScalarType::Float,
                ties[static_cast<std::size_t>(use.tie)].part.data());
  }
}

/// A tensor over part of a host buffer that keeps the whole buffer alive.
at::Tensor owning_view(const std::shared_ptr<HostBuffer>& memory, Bytes offset,
                       const std::vector<std::int64_t>& shape, c10::ScalarType type) {
  return at::from_blob(
      memory->data() + offset.size(), shape, [memory](void*) {}, at::TensorOptions().dtype(type));
}

}  // namespace

std::shared_ptr<const PreparedJob> prepare_job(const JobOptions& options,
                                               const MachineFacts& machine,
                                               const PilotRunner& run_pilot) {
  validate(options);
  auto job = std::make_shared<PreparedJob>();
  job->options = options;
  job->schema = describe_model(*options.model);
  InitialValues(options).require_known(job->schema);
  job->optimizer = make_optimizer(options.optimizer);
  job->edits_gradients = options.callbacks != nullptr && options.callbacks->edits_gradients();
  job->deferred = options.max_gradient_norm.has_value() || job->edits_gradients;

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
  const Bytes gradients = all_gradient_bytes(*job);
  job->state_bytes = state_bytes(*job) + (job->deferred ? gradients : Bytes(0)) +
                     batch_bytes(first) * (machine.loader_depth + 2);
  job->step_bytes = boundary_bytes(*job) + (job->deferred ? Bytes(0) : gradients);
  job->plan.host_state = job->state_bytes;
  job->plan.host_step = job->step_bytes;
  return job;
}

InitialisedJob initialise_job(const PreparedJob& prepared, HostArena& arena, Reservation& grant) {
  const ModelSchema& schema = prepared.schema;
  const int slots = prepared.optimizer->state_slots();
  const InitialValues given(prepared.options);
  InitialisedJob job;
  for (std::size_t tie = 0; tie < schema.ties.size(); ++tie) {
    const Bytes size = tie_bytes(schema, static_cast<std::int64_t>(tie));
    job.ties.push_back(
        {take_zeroed(arena, grant, size),
         schema.ties[tie].frozen ? HostBuffer() : take_zeroed(arena, grant, size * slots)});
  }
  for (std::size_t s = 0; s < prepared.layouts.size(); ++s) {
    const FlatLayout& layout = prepared.layouts[s];
    InitialisedShard shard;
    shard.trainable = take_zeroed(arena, grant, layout.trainable_bytes);
    shard.frozen = take_zeroed(arena, grant, layout.frozen_bytes);
    shard.moments = take_zeroed(arena, grant, layout.trainable_bytes * slots);
    for (HostBuffer& buffers : shard.buffers) {
      buffers = take_zeroed(arena, grant, layout.buffer_bytes);
    }
    if (prepared.deferred && !prepared.plan.fits_device) {
      shard.gradients = take(arena, grant, layout.trainable_bytes);
      shard.tied_gradients.resize(layout.tied.size());
      for_trainable_uses(schema, layout, [&](std::size_t tie, std::size_t use) {
        shard.tied_gradients[use] =
            take(arena, grant, tie_bytes(schema, static_cast<std::int64_t>(tie)));
      });
    }
    std::vector<std::shared_ptr<Layer>> layers;
    for (std::int64_t l = layout.first_layer; l < layout.end_layer; ++l) {
      layers.push_back(make_layer(*prepared.options.model, l, prepared.options.seed));
      store_initial_values(layout, l, *layers.back(), shard.trainable.data(), shard.frozen.data(),
                           shard.buffers[0].data(), [&](std::int64_t tie) {
                             return job.ties[static_cast<std::size_t>(tie)].part.data();
                           });
    }
    apply_given_values(schema, layout, given, shard, job.ties);
    shard.modules = std::make_unique<BoundShard>(schema, layout, std::move(layers));
    job.shards.push_back(std::move(shard));
  }
  return job;
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

std::string parameters_sha256(const PreparedJob& prepared, const Weights& weights) {
  std::map<std::string, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : weights) by_name[name] = &tensor;
  Sha256 digest;
  for (const auto& layer : prepared.schema.layers) {
    for (const auto& parameter : layer.parameters) {
      if (parameter.tie && parameter.tie_use != 0) continue;
      const at::Tensor& tensor = *by_name.at(parameter.full_name);
      digest.update({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  }
  return digest.hex_digest();
}

}  // namespace hydra
