#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "hydra/data/data_source.h"
#include "hydra/engine/job_options.h"
#include "hydra/models/gpt2.h"

namespace hydra::testing {

/// GPT-2 as everybody writes it on LibTorch: one graph, full logits, Torch's own dropout,
/// attention and cross-entropy. Shares nothing with `make_gpt2` but the names of its parameters.
class TorchGpt2 {
 public:
  /// Takes copies of `initial`, whose names are those of `make_gpt2`.
  TorchGpt2(const Gpt2Options& options, const Weights& initial);

  /// Returns the batch's share of the loss: the targets' negative log-likelihoods over
  /// `batch.loss_denominator`. Shapes: as `make_gpt2` says.
  at::Tensor loss(const Batch& batch) const;

  /// The parameters by name; leaves that require gradients.
  const std::map<std::string, at::Tensor>& parameters() const { return parameters_; }

 private:
  at::Tensor normed(const at::Tensor& x, const std::string& name) const;
  at::Tensor projected(const at::Tensor& x, const std::string& name) const;
  at::Tensor attended(const at::Tensor& qkv) const;
  at::Tensor dropped(const at::Tensor& x) const;

  Gpt2Options options_;
  std::map<std::string, at::Tensor> parameters_;
};

}  // namespace hydra::testing
