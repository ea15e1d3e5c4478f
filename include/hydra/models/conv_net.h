#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hydra/model/model.h"

namespace hydra {

/// The numbers that define a small convolution net for classification.
struct ConvNetOptions {
  std::int64_t input_channels = 3;
  std::int64_t image_size = 16;               ///< height and width, in pixels
  std::vector<std::int64_t> channels{8, 16};  ///< of each stage; each stage halves the image
  std::int64_t classes = 10;
};

/// Makes a convolution net: "conv0", "conv1", … (3x3 convolution, batch norm, ReLU, 2x2 max pool),
/// "classifier" (flatten and linear), "loss" (cross-entropy, -100 is ignored).
///
/// Shape (B batch): one input, fp32 [B, input_channels, image_size, image_size]; side input
/// "targets", int64 [B]. The output is the sum of the rows' losses divided by
/// context.loss_denominator(). Batch norm's statistics are those of a micro-batch.
/// Errors: InvalidArgument names the option and what it must be.
std::shared_ptr<Model> make_conv_net(const ConvNetOptions& options);

}  // namespace hydra
