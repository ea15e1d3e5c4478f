#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hydra/model/model.h"

namespace hydra {

enum class Activation { kGelu, kRelu };
enum class LossKind {
  kMeanSquaredError,  ///< targets fp32, the shape of the output
  kCrossEntropy,      ///< targets int64 [B]; -100 is ignored
};

/// The numbers that define a multi-layer perceptron.
struct MlpOptions {
  /// Widths from the input to the output: {8, 32, 32, 4} has three linear layers.
  std::vector<std::int64_t> widths;
  Activation activation = Activation::kGelu;  ///< after each linear layer but the last
  double dropout = 0.0;                       ///< after each activation
  LossKind loss = LossKind::kMeanSquaredError;
};

/// Makes an MLP: "fc0", "fc1", …, "loss".
///
/// Shape (B batch): one input, fp32 [B, widths.front()]; side input "targets". The output is the
/// sum of the rows' losses divided by context.loss_denominator(). Errors: InvalidArgument names the
/// option and what it must be.
std::shared_ptr<Model> make_mlp(const MlpOptions& options);

}  // namespace hydra
