#include "offload.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "hydra/core/error.h"
#include "hydra/testing/plain_loop.h"
#include "hydra/testing/random_data.h"
#include "hydra_side.h"
#include "torch_side.h"

namespace bench {
namespace {

using hydra::Bytes;

void validate(const OffloadOptions& options) {
  if (options.pairs < 1 || options.steps < 1) {
    throw hydra::InvalidArgument("--pairs and --steps must be at least 1, they are " +
                                 std::to_string(options.pairs) + " and " +
                                 std::to_string(options.steps));
  }
  if (options.torch_micro_batch_size < 1) {
    throw hydra::InvalidArgument("--torch-micro-batch-size is " +
                                 std::to_string(options.torch_micro_batch_size) +
                                 ", must be at least 1");
  }
}

hydra::JobOptions make_job(const OffloadOptions& options) {
  hydra::JobOptions job;
  job.name = "offload";
  job.model = hydra::make_gpt2(options.model);
  job.data = std::make_shared<hydra::testing::RandomTokens>(
      hydra::testing::RandomTokens::Options{.rows = options.batch_size,
                                            .tokens = options.context,
                                            .vocabulary_size = options.model.vocabulary_size});
  job.schedule = {.peak = 1e-4};
  job.micro_batch_size = options.micro_batch_size;
  return job;
}

std::shared_ptr<const hydra::Weights> initial_weights(hydra::JobOptions job) {
  job.max_steps = 0;
  return std::make_shared<const hydra::Weights>(hydra::testing::plain_loop(job).weights);
}

Bytes bytes_of(const hydra::Weights& weights) {
  Bytes total;
  for (const auto& [name, value] : weights) {
    total += Bytes(static_cast<std::int64_t>(value.nbytes()));
  }
  return total;
}

Bytes default_budget(Bytes plain_peak, Bytes parameters) {
  return std::min(Bytes(plain_peak.count() / 4), Bytes(parameters.count() * 2 / 4 * 3));
}

double timed(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What fits its device, or stays there from forward to backward, is no offload.
void require_offload(const OffloadReport& report, const hydra::Plan& plan) {
  if (report.recomputed_shards == 0) {
    throw hydra::InvalidArgument("no shard is recomputed under a device memory of " +
                                 to_string(report.device_budget) +
                                 ": this measures no offload, lower --device-memory");
  }
  Bytes parts;
  for (const hydra::ShardPlan& shard : plan.shards) parts += shard.trainable + shard.frozen;
  Bytes uploaded;
  for (const auto& [track, link] : report.figures.links) {
    if (track.ends_with("upload")) uploaded += link.bytes;
  }
  const Bytes once = parts * report.measured_steps;
  if (uploaded <= once) {
    throw hydra::InvalidArgument(
        "shards did not leave the device between forward and backward: " + to_string(uploaded) +
        " went up in " + std::to_string(report.measured_steps) + " steps of a model of " +
        to_string(parts) + "; lower --device-memory");
  }
}

}  // namespace

RatioEstimate OffloadReport::ratio() const {
  std::vector<double> ratios;
  for (const OffloadPair& pair : pairs) ratios.push_back(pair.torch_seconds / pair.hydra_seconds);
  return estimate_ratio(std::move(ratios));
}

RatioEstimate OffloadReport::ratio_without_recomputation() const {
  std::vector<double> ratios;
  for (const OffloadPair& pair : pairs) {
    ratios.push_back(pair.torch_seconds / (pair.hydra_seconds - pair.recomputation_seconds));
  }
  return estimate_ratio(std::move(ratios));
}

OffloadReport run_offload(const OffloadOptions& options) {
  validate(options);
  OffloadReport report;
  report.threads = options.threads > 0
                       ? options.threads
                       : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  report.tokens_per_step = options.batch_size * options.context;

  hydra::JobOptions job = make_job(options);
  job.initial_weights = initial_weights(job);
  report.parameters = bytes_of(*job.initial_weights);
  TorchSide torch(options.model, *job.initial_weights, job.data,
                  {.micro_batch_size = options.torch_micro_batch_size,
                   .threads = report.threads,
                   .warm_pages = options.warm_pages});
  const double torch_first_loss = torch.train(1).front();
  report.plain_peak = torch.peak();
  report.device_budget = options.device_memory > Bytes(0)
                             ? options.device_memory
                             : default_budget(report.plain_peak, report.parameters);

  HydraSide hydra_side(job, report.device_budget, report.threads);
  const hydra::Plan plan = hydra_side.plan();
  report.shards = static_cast<std::int64_t>(plan.shards.size());
  report.predicted_peak = plan.fits_device ? plan.resident_bytes : plan.predicted_peak;
  report.recomputed_shards =
      std::count_if(plan.shards.begin(), plan.shards.end(),
                    [](const hydra::ShardPlan& shard) { return shard.recompute; });
  for (std::int64_t p = 0; p < options.pairs; ++p) {
    OffloadPair pair;
    const auto plain = [&] {
      pair.torch_seconds =
          timed([&] { torch.train(options.steps); }) / static_cast<double>(options.steps);
    };
    if (p % 2 == 0) plain();
    const HydraSide::Measured measured = hydra_side.train(options.steps);
    if (p % 2 == 1) plain();
    pair.hydra_seconds = measured.seconds_per_step;
    pair.recomputation_seconds =
        measured.figures.forward_seconds / static_cast<double>(options.steps);
    report.first_loss_difference =
        std::abs(measured.first_loss - torch_first_loss) / torch_first_loss;
    report.process_peak = std::max(report.process_peak, measured.process);
    report.figures += measured.figures;
    report.measured_steps += options.steps;
    report.pairs.push_back(pair);
  }
  report.device_peak = hydra_side.device_peak();
  report.host_peak = hydra_side.host_peak();
  require_offload(report, plan);
  return report;
}

}  // namespace bench
