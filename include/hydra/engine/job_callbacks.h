#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hydra/engine/step_metrics.h"

namespace hydra {

/// One step's whole gradients by full name, in model order; a tied parameter once, under its
/// owner; frozen parameters and those that no backward pass has reached are absent.
///
/// Shape: as the parameter, fp32, contiguous, in host memory. Lifetime: the call that is given it.
using Gradients = std::vector<std::pair<std::string, at::Tensor>>;

/// What a callback decides once a step is done.
struct StepDecision {
  /// From the next step on the rate is this one instead of the schedule's, until it is changed
  /// again. Parameter groups still scale it.
  std::optional<double> learning_rate{};
  bool follow_schedule = false;  ///< takes a rate that was set before back; learning_rate wins
  bool stop = false;             ///< the job completes with the updates of this step
};

/// The user's code beside a job's steps: reads metrics, changes the learning rate, edits gradients,
/// stops the job.
///
/// Called on a thread of the job's own, one call at a time, in the order of the steps. The job's
/// next step begins when the call has returned, so that what a callback decides holds from a known
/// step on; other jobs go on meanwhile. A result is a function of what the callbacks decide: they
/// must depend on their arguments alone where runs are to be repeated to the bit.
///
/// Errors: what a callback throws ends its job as failed, with a CallbackError that holds the
/// message. Blocks: a callback may take its time, but must not wait for its own job's end, nor
/// destroy its runtime (std::exit does, where the runtime is static), which waits for the callback.
/// Lifetime: shared; several jobs may share one, which is then called by several threads.
class JobCallbacks {
 public:
  virtual ~JobCallbacks() = default;

  /// True when on_gradients is to be called: updates then wait for the whole gradient, which goes
  /// through host memory even where the model fits its device. Asked once, when a job is submitted.
  virtual bool edits_gradients() const { return false; }
  /// Called with the sum over the mini-batch, before the norm is taken and clipped. What is written
  /// into the tensors is what the update uses; the norm is computed from it.
  virtual void on_gradients(std::int64_t /*step*/, const Gradients& /*gradients*/) {}
  /// Called when a step's metrics are known.
  virtual StepDecision on_step(const StepMetrics& /*metrics*/) { return {}; }
};

}  // namespace hydra
