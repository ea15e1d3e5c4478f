#pragma once

#include <memory>
#include <vector>

#include "hydra/engine/job_options.h"
#include "hydra/runtime/runtime.h"
#include "process_memory.h"
#include "window_meter.h"

namespace bench {

/// Trains one model with Hydra on one virtual device, a few steps at a time.
class HydraSide {
 public:
  HydraSide(hydra::JobOptions job, hydra::Bytes device_memory, int threads);

  hydra::Plan plan() { return runtime_.plan(job_); }

  struct Measured {
    double seconds_per_step = 0;
    double first_loss = 0;
    hydra::Bytes process;  ///< most that the process has held beyond what it held without Hydra
    WindowFigures figures;
  };
  /// Trains a fresh job for one step that is not measured and `steps` that are: from the end of
  /// the first to the end of the last, each with one step's updates beside it. Blocks: meanwhile.
  Measured train(std::int64_t steps);

  hydra::Bytes device_peak() const { return runtime_.device_stats().front().peak_in_use; }
  hydra::Bytes host_peak() const { return runtime_.host_budget().peak(); }

 private:
  hydra::Bytes before_ = process_memory("VmRSS:");
  hydra::JobOptions job_;
  std::shared_ptr<WindowMeter> meter_ = std::make_shared<WindowMeter>();
  hydra::Runtime runtime_;
};

}  // namespace bench
