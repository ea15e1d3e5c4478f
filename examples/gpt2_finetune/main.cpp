// Fine-tunes several GPT-2 models at once, each larger than its device.

#include <algorithm>
#include <charconv>
#include <exception>
#include <iostream>
#include <optional>

#include "console/console_log.h"
#include "console/exit_code.h"
#include "console/named_paths.h"
#include "console/stop_signals.h"
#include "hydra/hydra.h"
#include "options.h"
#include "watch.h"

namespace finetune {

constexpr const char* kProgram = "gpt2_finetune";

namespace {

using Tokens = std::vector<std::int32_t>;

/// The text's tokens: the first part for the base model, the rest for the fine-tunes.
struct Corpus {
  std::shared_ptr<const Tokens> base;
  std::shared_ptr<const Tokens> tune;
};

Corpus read_corpus(const Options& options) {
  const hydra::TextFile file = hydra::read_text(options.text, options.encoding);
  if (file.had_byte_order_mark) {
    std::cout << options.text << " begins with a byte order mark, which is skipped\n";
  }
  const Tokens all = hydra::ByteTokenizer().encode(file.text);
  if (options.base_steps == 0) {
    const auto whole = std::make_shared<const Tokens>(all);
    return {whole, whole};
  }
  const auto border = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  return {std::make_shared<const Tokens>(all.begin(), border),
          std::make_shared<const Tokens>(border, all.end())};
}

std::shared_ptr<hydra::DataSource> windows(const Options& options, const char* what,
                                           std::shared_ptr<const Tokens> tokens) {
  const std::size_t count = tokens->size();
  const auto data = std::make_shared<hydra::PackedWindows>(
      std::move(tokens), hydra::PackedWindowsOptions{.batch_size = options.batch_size,
                                                     .context = options.model.context,
                                                     .seed = options.seed});
  if (!options.quiet) {
    std::cout << what << ": " << count << " tokens, " << data->windows() << " windows of "
              << options.model.context << ", " << data->unused_tokens()
              << " tokens at the end unused\n";
  }
  return data;
}

/// The shortest text that reads back as the same number: rates that differ have names that do.
std::string exact(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

hydra::JobOptions make_job(const Options& options, std::shared_ptr<const hydra::Model> model,
                           std::shared_ptr<hydra::DataSource> data, double rate,
                           std::int64_t steps) {
  hydra::JobOptions job;
  job.name = "lr " + exact(rate);
  job.model = std::move(model);
  job.data = std::move(data);
  job.optimizer = hydra::AdamWOptions{.weight_decay = options.weight_decay};
  job.schedule = {.shape = hydra::parse_schedule_shape(options.schedule),
                  .peak = rate,
                  .warmup_steps = options.warmup_steps,
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
  runtime.log = console::make_console_log(
      kProgram, options.quiet ? hydra::LogLevel::kWarning : hydra::LogLevel::kInfo);
  runtime.metrics_file = options.metrics;
  runtime.tensorboard_directory = options.tensorboard;
  return runtime;
}

std::vector<std::string> layer_names(const hydra::Model& model) {
  std::vector<std::string> names;
  for (const auto& layer : model.layers()) names.push_back(layer.name);
  return names;
}

void print_plan(const Options& options, hydra::Runtime& runtime, const hydra::JobOptions& job) {
  const hydra::Plan plan = runtime.plan(job);
  if (options.quiet && !options.plan_only) return;
  std::cout << "plan of each model:\n" << plan.to_text(layer_names(*job.model)) << std::flush;
}

/// Trains the base model and returns its weights; null when there is to be none.
std::shared_ptr<const hydra::Weights> train_base(const Options& options, hydra::Runtime& runtime,
                                                 const std::shared_ptr<const hydra::Model>& model,
                                                 const Corpus& corpus) {
  if (options.base_steps == 0) return nullptr;
  hydra::JobOptions base = make_job(options, model, windows(options, "base text", corpus.base),
                                    options.base_learning_rate, options.base_steps);
  base.name = "base";
  const hydra::JobHandle job = runtime.submit(base);
  watch(runtime, options.quiet);
  return std::make_shared<const hydra::Weights>(job.weights());
}

/// Submits a model per rate. Handles are dropped: a finished model's weights would keep host memory
/// from the models that wait.
void tune(const Options& options, hydra::Runtime& runtime, hydra::JobOptions job,
          const std::shared_ptr<const hydra::Weights>& base) {
  job.initial_weights = base;
  for (const double rate : options.learning_rates) {
    job.name = "lr " + exact(rate);
    job.schedule.peak = rate;
    runtime.submit(job);
  }
  watch(runtime, options.quiet);
}

/// What is told at the end. Each output is written whatever becomes of the others.
class Outcome {
 public:
  template <typename Call>
  bool attempt(Call call) {
    try {
      call();
      return true;
    } catch (const std::exception& error) {
      std::cerr << kProgram << ": " << error.what() << "\n";
      return false;
    }
  }
  template <typename Call>
  void train(Call call) {
    failed_ = !attempt(call) || failed_;
  }
  template <typename Call>
  void write(Call call) {
    lost_ = !attempt(call) || lost_;
  }

  void lost(bool anything) { lost_ = lost_ || anything; }

  int exit_code(const hydra::Runtime& runtime) const {
    if (const int signal = console::stop_signal()) return console::kSignalled + signal;
    const auto statuses = runtime.statuses();
    const bool all_completed = std::all_of(statuses.begin(), statuses.end(), [](const auto& job) {
      return job.state == hydra::JobState::kCompleted;
    });
    if (failed_ || !all_completed) return console::kJobFailed;
    return lost_ ? console::kOutputLost : console::kDone;
  }

 private:
  bool failed_ = false;
  bool lost_ = false;
};

void print_summary(const hydra::RunSummary& summary) {
  std::cout << "\n" << hydra::to_table(summary) << std::flush;
  if (!std::cout)
    throw hydra::SystemError("what was printed is lost: standard output cannot be written");
}

int run(const Options& options) {
  console::refuse_shared_files(
      {{"--text", options.text}},
      {{"--json", options.json}, {"--trace", options.trace}, {"--metrics", options.metrics}});
  std::optional<hydra::OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);
  const auto trace =
      options.trace.empty() ? nullptr : std::make_shared<hydra::TraceFile>(options.trace);
  const Corpus corpus = read_corpus(options);
  const std::shared_ptr<const hydra::Model> model = hydra::make_gpt2(options.model);
  hydra::Runtime runtime(make_runtime(options, trace));
  const hydra::JobOptions job = make_job(options, model, windows(options, "text", corpus.tune),
                                         options.learning_rates.front(), options.steps);
  print_plan(options, runtime, job);  // refuses what cannot be trained
  if (options.plan_only) return std::cout ? console::kDone : console::kOutputLost;

  Outcome outcome;
  outcome.train([&] {
    const auto base = train_base(options, runtime, model, corpus);
    if (console::stop_signal() == 0) tune(options, runtime, job, base);
  });
  runtime.close();  // and with it, whatever writes beside the training
  const hydra::RunSummary summary = runtime.summary();
  outcome.write([&] { print_summary(summary); });
  outcome.lost(!summary.lost_outputs.empty());
  if (json) outcome.write([&] { json->write(hydra::to_json(summary)); });
  if (trace != nullptr) outcome.write([&] { trace->write(); });
  return outcome.exit_code(runtime);
}

}  // namespace
}  // namespace finetune

int main(int argc, char** argv) {
  console::note_stop_signals();
  try {
    int exit_code = 0;
    const auto options = finetune::parse_command_line(argc, argv, exit_code);
    return options ? finetune::run(*options) : exit_code;
  } catch (const std::exception& error) {
    std::cerr << finetune::kProgram << ": " << error.what() << "\n";
    return console::kRefused;
  }
}
