#pragma once

#include <cstdint>

#include "hydra/model/layer_context.h"

namespace hydra::detail {

/// Throws InvalidArgument unless 0 <= probability < 1.
void check_dropout_probability(double probability);

/// Draws a mask's seed from the call's generator: one draw, whatever the mask's size.
std::uint64_t draw_dropout_seed(LayerContext& context);

}  // namespace hydra::detail
