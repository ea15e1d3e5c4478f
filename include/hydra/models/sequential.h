#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <string>

#include "hydra/model/model.h"

namespace hydra {

/// Makes a model of a torch::nn::Sequential: each of its modules becomes a layer of that name
/// ("0", "1", … where none was given), which can be cut off from the next. Add the loss to it:
/// `wrap("net", net)->add("loss", cross_entropy_loss())`.
///
/// The modules are copied, and every job begins with the weights that they have now, whatever its
/// seed is. Each takes one tensor and returns one. Parameters that modules share (a module that
/// stands in it twice, two modules with one weight) are tied. torch::nn::Dropout draws from Torch's
/// process-wide generator and is refused when a job is submitted: use hydra::dropout.
/// Lifetime: the Sequential may go. Errors: InvalidArgument for an empty Sequential, and by name
/// for a module that cannot be copied, that holds one parameter twice, or shares a buffer with
/// another.
std::shared_ptr<Model> wrap(const std::string& name, const torch::nn::Sequential& modules);

}  // namespace hydra
