#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hydra {

/// The tensors that pass from layer to layer.
using Tensors = std::vector<at::Tensor>;

enum class Mode { kTrain, kEvaluate };

/// By name: tensors of this micro-batch that any layer may read, such as "targets".
using SideInputs = std::vector<std::pair<std::string, at::Tensor>>;

/// What identifies one call of a layer; its random numbers are a function of these.
struct CallIdentity {
  std::uint64_t job_seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  std::int64_t layer_use = 0;  ///< position of the layer in the model
};

/// What a layer may know beside its inputs. One per call of a layer's forward.
///
/// Thread safety: confined to the call. Lifetime: dies with the call.
class LayerContext {
 public:
  LayerContext(CallIdentity identity, Mode mode, double loss_denominator, const SideInputs& side)
      : identity_(identity), mode_(mode), loss_denominator_(loss_denominator), side_(side) {}

  Mode mode() const noexcept { return mode_; }
  bool training() const noexcept { return mode_ == Mode::kTrain; }
  std::int64_t step() const noexcept { return identity_.step; }
  std::int64_t micro_batch() const noexcept { return identity_.micro_batch; }
  std::int64_t layer_use() const noexcept { return identity_.layer_use; }
  /// The number of targets in the whole mini-batch (Batch::loss_denominator).
  double loss_denominator() const noexcept { return loss_denominator_; }

  bool has_side(std::string_view name) const noexcept;
  /// Errors: InvalidArgument lists the names that are there.
  const at::Tensor& side(std::string_view name) const;

  /// Returns this call's generator, made at the first use with a seed that is a function of the
  /// call's identity: a recomputed forward draws the same numbers.
  at::Generator& generator();

 private:
  CallIdentity identity_;
  Mode mode_;
  double loss_denominator_;
  const SideInputs& side_;
  std::optional<at::Generator> generator_;
};

namespace detail {
/// Throws InvalidArgument unless an adapted module was given one tensor.
void require_one_input(std::size_t count, const std::string& module_name);
}  // namespace detail

}  // namespace hydra
