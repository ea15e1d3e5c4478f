#include "hydra_side.h"

#include <utility>

namespace bench {

HydraSide::HydraSide(hydra::JobOptions job, hydra::Bytes device_memory, int threads)
    : job_(std::move(job)),
      runtime_({.devices = {{.name = "cpu0", .memory = device_memory}},
                .threads_per_device = threads,
                .trace = meter_}) {}

HydraSide::Measured HydraSide::train(std::int64_t steps) {
  job_.max_steps = steps + 1;
  reset_process_peak();
  const hydra::JobHandle handle = runtime_.submit(job_);
  handle.get();
  const std::vector<hydra::StepMetrics> metrics = handle.metrics();
  const hydra::Nanoseconds begin = metrics.front().end;
  const hydra::Nanoseconds end = metrics.back().end;
  Measured measured;
  measured.first_loss = metrics.front().loss;
  measured.seconds_per_step = hydra::seconds(end - begin) / static_cast<double>(steps);
  measured.process = process_memory("VmHWM:") - before_;
  measured.figures = meter_->take(begin, end);
  return measured;
}

}  // namespace bench
