#include "hydra/model/schema.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "hydra/core/error.h"
#include "hydra/core/glob.h"
#include "model/layer_tensors.h"

namespace hydra {
namespace {

using Parameter = ModelSchema::Parameter;

void require_supported(const std::string& full_name, const at::Tensor& tensor, bool parameter) {
  const auto refuse = [&](const std::string& what) {
    throw Unsupported((parameter ? "parameter \"" : "buffer \"") + full_name + "\" " + what);
  };
  if (tensor.layout() != at::kStrided) refuse("is sparse: use a dense tensor");
  if (!tensor.device().is_cpu()) refuse("is not in host memory: build layers on the CPU");
  if (parameter && tensor.scalar_type() != at::kFloat) {
    refuse(std::string("has type ") + c10::toString(tensor.scalar_type()) +
           ": parameters are fp32 here; keep other tensors as buffers");
  }
}

/// Refuses what would be two places of one memory: each name gets memory of its own.
class DistinctTensors {
 public:
  void add(const std::string& full_name, const at::Tensor& tensor) {
    for (const auto& [other_name, other] : seen_) {
      if (!overlap(tensor, other)) continue;
      throw Unsupported("\"" + full_name + "\" and \"" + other_name +
                        "\" are one tensor, registered twice in their layer: register it once "
                        "and use it twice");
    }
    seen_.emplace_back(full_name, tensor);
  }

 private:
  static bool overlap(const at::Tensor& a, const at::Tensor& b) {
    if (a.is_same(b)) return true;
    const auto [a_begin, a_end] = extent(a);
    const auto [b_begin, b_end] = extent(b);
    return std::max(a_begin, b_begin) < std::min(a_end, b_end);
  }

  static std::pair<std::uintptr_t, std::uintptr_t> extent(const at::Tensor& tensor) {
    if (tensor.numel() == 0) return {0, 0};
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    std::size_t last = 0;
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      last += static_cast<std::size_t>((tensor.size(d) - 1) * tensor.stride(d));
    }
    return {begin, begin + (last + 1) * tensor.itemsize()};
  }

  std::vector<std::pair<std::string, at::Tensor>> seen_;
};

Parameter describe_parameter(const std::string& layer, const std::string& name,
                             const at::Tensor& tensor) {
  Parameter parameter;
  parameter.name = name;
  parameter.full_name = layer + "." + name;
  require_supported(parameter.full_name, tensor, true);
  parameter.shape = tensor.sizes().vec();
  parameter.elements = tensor.numel();
  parameter.frozen = !tensor.requires_grad();
  return parameter;
}

ModelSchema::Buffer describe_buffer(const std::string& layer, const std::string& name,
                                    const at::Tensor& tensor) {
  ModelSchema::Buffer buffer;
  buffer.name = name;
  buffer.full_name = layer + "." + name;
  require_supported(buffer.full_name, tensor, false);
  buffer.shape = tensor.sizes().vec();
  buffer.type = tensor.scalar_type();
  buffer.elements = tensor.numel();
  buffer.bytes = Bytes(static_cast<std::int64_t>(tensor.nbytes()));
  return buffer;
}

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

ModelSchema::Layer describe_made(const Layer& made, const std::string& name,
                                 std::vector<WeakTensor>& tensors_made) {
  ModelSchema::Layer layer;
  layer.name = name;
  const LayerTensors tensors(made);
  DistinctTensors distinct;
  for (const auto& [key, tensor] : tensors.parameters) {
    layer.parameters.push_back(describe_parameter(name, key, tensor));
    distinct.add(layer.parameters.back().full_name, tensor);
    tensors_made.emplace_back(tensor.getIntrusivePtr());
  }
  for (const auto& [key, tensor] : tensors.buffers) {
    layer.buffers.push_back(describe_buffer(name, key, tensor));
    distinct.add(layer.buffers.back().full_name, tensor);
    tensors_made.emplace_back(tensor.getIntrusivePtr());
  }
  return layer;
}

ModelSchema::Layer describe_layer(const Model& model, std::int64_t index) {
  const std::string& name = model.layers()[static_cast<std::size_t>(index)].name;
  std::vector<WeakTensor> tensors_made;
  ModelSchema::Layer layer = describe_made(*make_layer(model, index, 0), name, tensors_made);
  const bool kept = std::any_of(tensors_made.begin(), tensors_made.end(),
                                [](const WeakTensor& tensor) { return !tensor.expired(); });
  if (kept) {
    throw Unsupported("the factory of layer \"" + name +
                      "\" keeps the parameters or buffers of what it made: it must make a new "
                      "layer in each call");
  }
  return layer;
}

Parameter& find_parameter(ModelSchema& schema, const std::string& full_name,
                          std::int64_t& layer_index) {
  for (std::size_t l = 0; l < schema.layers.size(); ++l) {
    for (Parameter& parameter : schema.layers[l].parameters) {
      if (parameter.full_name != full_name) continue;
      layer_index = static_cast<std::int64_t>(l);
      return parameter;
    }
  }
  throw InvalidArgument("a tie names \"" + full_name + "\", which is no parameter of the model");
}

void freeze(ModelSchema& schema, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    bool matched = false;
    for (auto& layer : schema.layers) {
      for (Parameter& parameter : layer.parameters) {
        if (!glob_match(pattern, parameter.full_name)) continue;
        parameter.frozen = true;
        matched = true;
      }
    }
    if (!matched) {
      throw InvalidArgument("the freeze pattern \"" + pattern + "\" matches no parameter");
    }
  }
}

// A tied parameter is frozen when its owner is; freezing another use alone would do nothing.
void tie(ModelSchema& schema, const Model::Tie& definition) {
  ModelSchema::Tie tie;
  const auto index = static_cast<std::int64_t>(schema.ties.size());
  std::int64_t previous_layer = -1;
  for (const std::string& full_name : definition.parameters) {
    std::int64_t layer = 0;
    Parameter& parameter = find_parameter(schema, full_name, layer);
    if (parameter.tie) {
      throw InvalidArgument("parameter \"" + full_name + "\" is in two ties");
    }
    if (layer <= previous_layer) {
      throw InvalidArgument(
          "the parameters of a tie must lie in different layers, in layer order: \"" + full_name +
          "\" does not");
    }
    if (tie.uses == 0) {
      tie.full_name = full_name;
      tie.shape = parameter.shape;
      tie.elements = parameter.elements;
      tie.frozen = parameter.frozen;
    } else if (parameter.shape != tie.shape) {
      throw InvalidArgument("\"" + full_name + "\" and \"" + tie.full_name +
                            "\" are tied but have different shapes");
    }
    if (parameter.frozen && !tie.frozen) {
      throw InvalidArgument("\"" + full_name + "\" is frozen but tied to \"" + tie.full_name +
                            "\", which is not: freeze that one");
    }
    parameter.tie = index;
    parameter.tie_use = tie.uses++;
    parameter.frozen = tie.frozen;
    tie.layers.push_back(layer);
    previous_layer = layer;
  }
  schema.ties.push_back(std::move(tie));
}

std::vector<std::int64_t> find_cuts(const ModelSchema& schema,
                                    const std::vector<std::string>& names) {
  std::vector<std::int64_t> cuts;
  for (const std::string& name : names) {
    const auto found = std::find_if(schema.layers.begin(), schema.layers.end(),
                                    [&](const auto& layer) { return layer.name == name; });
    if (found == schema.layers.end()) {
      throw InvalidArgument("a cut is wanted before \"" + name + "\", which is no layer");
    }
    const std::int64_t index = found - schema.layers.begin();
    if (index > 0) cuts.push_back(index);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

}  // namespace

ModelSchema describe_model(const Model& model) {
  if (model.layers().empty()) {
    throw InvalidArgument("model \"" + model.name() + "\" has no layers: add some");
  }
  ModelSchema schema;
  for (std::size_t l = 0; l < model.layers().size(); ++l) {
    schema.layers.push_back(describe_layer(model, static_cast<std::int64_t>(l)));
  }
  freeze(schema, model.frozen_patterns());
  for (const Model::Tie& definition : model.ties()) tie(schema, definition);
  schema.cuts = find_cuts(schema, model.cuts());
  return schema;
}

}  // namespace hydra
