// Fine-tunes several GPT-2 models at once, each larger than its device.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>

#include "hydra/hydra.h"
#include "options.h"
#include "watch.h"

namespace finetune {
namespace {

using Tokens = std::vector<std::int32_t>;

/// The text's tokens: the first part for the base model, the rest for the fine-tunes.
struct Corpus {
  std::shared_ptr<const Tokens> base;
  std::shared_ptr<const Tokens> tune;
};

Corpus read_corpus(const Options& options) {
  const Tokens all = hydra::read_tokens(options.text, hydra::ByteTokenizer());
  if (options.base_steps == 0) {
    const auto whole = std::make_shared<const Tokens>(all);
    return {whole, whole};
  }
  const auto border = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  return {std::make_shared<const Tokens>(all.begin(), border),
          std::make_shared<const Tokens>(border, all.end())};
}

std::shared_ptr<hydra::DataSource> windows(const Options& options,
                                           std::shared_ptr<const Tokens> tokens) {
  return std::make_shared<hydra::PackedWindows>(
      std::move(tokens), hydra::PackedWindowsOptions{.batch_size = options.batch_size,
                                                     .context = options.model.context,
                                                     .seed = options.seed});
}

hydra::JobOptions make_job(const Options& options, std::shared_ptr<const hydra::Model> model,
                           std::shared_ptr<hydra::DataSource> data, double rate,
                           std::int64_t steps) {
  hydra::JobOptions job;
  char name[48];
  std::snprintf(name, sizeof name, "lr %.3g", rate);
  job.name = name;
  job.model = std::move(model);
  job.data = std::move(data);
  job.optimizer = hydra::AdamWOptions{.weight_decay = options.weight_decay};
  job.schedule = {.shape = hydra::parse_schedule_shape(options.schedule),
                  .peak = rate,
                  .warmup_steps = std::min(options.warmup_steps, steps - 1),
                  .max_steps = steps};
  job.max_steps = steps;
  job.micro_batch_size = options.micro_batch_size;
  job.seed = options.seed;
  job.max_gradient_norm = options.max_gradient_norm;
  return job;
}

hydra::RuntimeOptions make_runtime(const Options& options,
                                   std::shared_ptr<hydra::TraceFile> trace) {
  hydra::RuntimeOptions runtime;
  for (std::size_t i = 0; i < options.devices.size(); ++i) {
    hydra::VirtualDeviceOptions device;
    device.name = options.devices[i] + std::to_string(i);
    device.memory = options.device_memory;
    runtime.devices.push_back(device);
  }
  runtime.host_memory = options.host_memory;
  runtime.storage.drives = options.drives;
  runtime.storage.host_cache = options.host_cache;
  runtime.threads_per_device = options.threads;
  runtime.policy = hydra::make_policy(options.policy);
  runtime.trace = std::move(trace);
  runtime.metrics_file = options.metrics;
  runtime.tensorboard_directory = options.tensorboard;
  return runtime;
}

std::vector<std::string> layer_names(const hydra::Model& model) {
  std::vector<std::string> names;
  for (const auto& layer : model.layers()) names.push_back(layer.name);
  return names;
}

void print_plan(hydra::Runtime& runtime, const hydra::JobOptions& job) {
  std::cout << "plan of each model:\n"
            << runtime.plan(job).to_text(layer_names(*job.model)) << std::flush;
}

/// Trains the base model and returns its weights; null when there is to be none.
std::shared_ptr<const hydra::Weights> train_base(const Options& options, hydra::Runtime& runtime,
                                                 const std::shared_ptr<const hydra::Model>& model,
                                                 const Corpus& corpus) {
  if (options.base_steps == 0) return nullptr;
  hydra::JobOptions base = make_job(options, model, windows(options, corpus.base),
                                    options.base_learning_rate, options.base_steps);
  base.name = "base";
  const hydra::JobHandle job = runtime.submit(base);
  watch({job}, options.quiet);
  return std::make_shared<const hydra::Weights>(job.weights());
}

int run(const Options& options) {
  const Corpus corpus = read_corpus(options);
  const std::shared_ptr<const hydra::Model> model = hydra::make_gpt2(options.model);
  const auto trace =
      options.trace.empty() ? nullptr : std::make_shared<hydra::TraceFile>(options.trace);
  hydra::Runtime runtime(make_runtime(options, trace));
  const auto tune_data = windows(options, corpus.tune);
  if (options.plan_only || !options.quiet) {
    print_plan(runtime,
               make_job(options, model, tune_data, options.learning_rates.front(), options.steps));
  }
  if (options.plan_only) return 0;

  const auto base = train_base(options, runtime, model, corpus);
  std::vector<hydra::JobHandle> jobs;
  for (const double rate : options.learning_rates) {
    hydra::JobOptions job = make_job(options, model, tune_data, rate, options.steps);
    job.initial_weights = base;
    jobs.push_back(runtime.submit(job));
  }
  watch(jobs, options.quiet);

  const hydra::RunSummary summary = runtime.summary();
  std::cout << "\n" << hydra::to_table(summary);
  if (!options.json.empty()) hydra::write_summary_json(summary, options.json);
  if (trace != nullptr) trace->write();
  const bool all_completed = std::all_of(jobs.begin(), jobs.end(), [](const auto& job) {
    return job.status().state == hydra::JobState::kCompleted;
  });
  return all_completed ? 0 : 1;
}

}  // namespace
}  // namespace finetune

int main(int argc, char** argv) {
  try {
    int exit_code = 0;
    const auto options = finetune::parse_command_line(argc, argv, exit_code);
    return options ? finetune::run(*options) : exit_code;
  } catch (const std::exception& error) {
    std::cerr << "gpt2_finetune: " << error.what() << "\n";
    return 2;
  }
}
