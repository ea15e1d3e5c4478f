#include "options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <limits>

#include "console/exit_code.h"
#include "console/number_checks.h"

namespace finetune {
namespace {

using console::number;
using console::whole_number;

CLI::Validator gradient_norm() {
  const std::string range = "0 (no clipping), 1e-12 or more, or inf";
  CLI::Validator check = number(0, std::numeric_limits<double>::infinity(), range);
  const CLI::Validator any = check;
  check.operation([any, range](std::string& text) -> std::string {
    const std::string problem = any(text);
    if (!problem.empty()) return problem;
    const double norm = std::stod(text);
    return norm == 0 || norm >= 1e-12 ? "" : text + " is out of range: give " + range;
  });
  return check;
}

/// Command-line values that need a second look.
struct Raw {
  std::string size;
  std::string device_memory = "24MiB";
  std::string host_memory;
  std::vector<std::string> storage;
  std::string storage_size;
  std::string host_cache;
  std::string text_encoding = "utf-8";
  std::int64_t models = 0;
  double max_gradient_norm = 0;
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> width;
  std::optional<std::int64_t> heads;
};

constexpr std::int64_t kManyDevices = 256;
constexpr std::int64_t kMostRates = 14;  // doubling from 1e-4: the last is 0.8

void declare_model(CLI::App& app, Options& options, Raw& raw) {
  app.add_option("--size", raw.size, "A published size: gpt2, gpt2-medium, gpt2-large, gpt2-xl");
  app.add_option("--layers", raw.layers, "Blocks of the model (default 6)")
      ->check(whole_number(1, 100000));
  app.add_option("--width", raw.width, "Width of the model (default 192)")
      ->check(whole_number(1, 1 << 20));
  app.add_option("--heads", raw.heads, "Attention heads (default 6)")
      ->check(whole_number(1, 1 << 20));
  app.add_option("--context", options.model.context, "Tokens per window")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 24));
  app.add_option("--dropout", options.model.dropout, "Dropout rate")
      ->capture_default_str()
      ->check(number(0, std::nextafter(1.0, 0.0), "0 or more and below 1"));
}

void declare_machine(CLI::App& app, Options& options, Raw& raw) {
  app.add_option("--devices", options.devices, "Comma-separated devices: cpu,cpu is two")
      ->delimiter(',');
  app.add_option("--threads", options.threads,
                 "Torch threads per device (default: the cores shared among the devices); "
                 "results depend on it")
      ->check(whole_number(0, 4096));
  app.add_option("--device-memory", raw.device_memory, "Memory of each device, for example 64MiB")
      ->capture_default_str();
  app.add_option("--host-memory", raw.host_memory,
                 "Host memory for what is not on a device (default: most of the machine's)");
  app.add_option("--storage", raw.storage,
                 "Directory on a drive for parameters and moments beyond host memory; once per "
                 "drive");
  app.add_option("--storage-size", raw.storage_size,
                 "Bytes to take of all drives together, in equal shares, for example 200GiB");
  app.add_option("--host-cache", raw.host_cache,
                 "Part of --host-memory that is a cache over storage (default: half of it)");
  app.add_option("--policy", options.policy,
                 "lrtf, fifo, round-robin, shortest, priority or random")
      ->capture_default_str();
}

void declare_training(CLI::App& app, Options& options, Raw& raw) {
  const auto rate = number(0, 1e30, "0 or more and finite");
  app.add_option("--learning-rate", options.learning_rates,
                 "Comma-separated rates: one model is fine-tuned with each")
      ->delimiter(',')
      ->check(rate);
  app.add_option("--models", raw.models,
                 "Number of models, when no rates are given (rates double from 1e-4)")
      ->check(whole_number(1, kMostRates));
  app.add_option("--steps", options.steps, "Steps of each fine-tune")
      ->capture_default_str()
      ->check(whole_number(1));
  app.add_option("--base-steps", options.base_steps,
                 "Steps of a base model that the fine-tunes start from; 0 starts from scratch")
      ->capture_default_str()
      ->check(whole_number(0));
  app.add_option("--base-learning-rate", options.base_learning_rate, "Rate of the base model")
      ->capture_default_str()
      ->check(rate);
  app.add_option("--batch-size", options.batch_size, "Windows per mini-batch")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 24));
  app.add_option("--micro-batch-size", options.micro_batch_size,
                 "Windows that go through a layer at once; 0: the whole mini-batch")
      ->capture_default_str()
      ->check(whole_number(0, 1 << 24));
  app.add_option("--warmup-steps", options.warmup_steps,
                 "Steps of linear warm-up, of each model; fewer than it has steps")
      ->capture_default_str()
      ->check(whole_number(0));
  app.add_option("--schedule", options.schedule, "constant, linear or cosine")
      ->capture_default_str();
  app.add_option("--weight-decay", options.weight_decay, "AdamW's decay")
      ->capture_default_str()
      ->check(number(0, 1e30, "0 or more and finite"));
  app.add_option("--max-gradient-norm", raw.max_gradient_norm,
                 "Clip the global gradient norm; 0 or inf does not")
      ->capture_default_str()
      ->check(gradient_norm());
  app.add_option("--seed", options.seed, "Seed of weights, dropout and shuffling")
      ->capture_default_str()
      ->check(whole_number(0));
}

void declare_files(CLI::App& app, Options& options, Raw& raw) {
  app.add_option("--text", options.text, "Text file to train on")->required();
  app.add_option("--text-encoding", raw.text_encoding,
                 "utf-8, or bytes to train on any file as it is")
      ->capture_default_str();
  app.add_option("--json", options.json, "Write a summary for machines to this file");
  app.add_option("--trace", options.trace, "Write a Chrome/Perfetto trace to this file");
  app.add_option("--metrics", options.metrics, "Append a JSON line per job and step to this file");
  app.add_option("--tensorboard", options.tensorboard,
                 "Write TensorBoard event files below this directory");
  app.add_flag("--plan", options.plan_only, "Print the plan and stop");
  app.add_flag("--quiet", options.quiet, "No progress, only the table at the end");
}

void declare(CLI::App& app, Options& options, Raw& raw) {
  declare_files(app, options, raw);
  declare_training(app, options, raw);
  declare_model(app, options, raw);
  declare_machine(app, options, raw);
  app.footer(
      "Ctrl-C, SIGTERM and SIGHUP end every model at its next step, and everything gathered so far "
      "is\n"
      "written; the second one ends at once.\n"
      "Exit codes: 0 done; 1 a model failed; 2 the command line or an input was refused; 3 an "
      "output\n"
      "was lost; 128 and its number after a signal (130 for Ctrl-C).");
}

void resolve_storage(Options& options, const Raw& raw) {
  if (raw.storage.empty() != raw.storage_size.empty()) {
    throw hydra::InvalidArgument("--storage and --storage-size belong together: give both");
  }
  if (!raw.host_cache.empty()) options.host_cache = hydra::parse_bytes(raw.host_cache);
  if (raw.storage.empty()) return;
  const hydra::Bytes size = hydra::parse_bytes(raw.storage_size);
  const auto drives = static_cast<std::int64_t>(raw.storage.size());
  for (const std::string& directory : raw.storage) {
    options.drives.push_back({directory, hydra::Bytes(size.count() / drives)});
  }
}

void require_warmup_within(std::int64_t warmup, std::int64_t steps, const std::string& option) {
  if (warmup < steps) return;
  throw hydra::InvalidArgument("--warmup-steps is " + std::to_string(warmup) + " and " + option +
                               " " + std::to_string(steps) +
                               ": the warm-up must end before the training does");
}

void resolve(Options& options, const Raw& raw) {
  if (!raw.size.empty()) {
    if (raw.layers || raw.width || raw.heads) {
      throw hydra::InvalidArgument("give --size or --layers/--width/--heads, not both");
    }
    const auto published = hydra::gpt2_size(raw.size);
    options.model.layers = published.layers;
    options.model.width = published.width;
    options.model.heads = published.heads;
  }
  options.model.layers = raw.layers.value_or(options.model.layers);
  options.model.width = raw.width.value_or(options.model.width);
  options.model.heads = raw.heads.value_or(options.model.heads);
  options.model.vocabulary_size = hydra::ByteTokenizer().vocabulary_size();
  if (options.learning_rates.empty()) {
    const std::int64_t models = raw.models > 0 ? raw.models : 4;
    for (std::int64_t i = 0; i < models; ++i) {
      options.learning_rates.push_back(1e-4 * static_cast<double>(std::int64_t{1} << i));
    }
  } else if (raw.models > 0 &&
             raw.models != static_cast<std::int64_t>(options.learning_rates.size())) {
    throw hydra::InvalidArgument("--models is " + std::to_string(raw.models) + " but " +
                                 std::to_string(options.learning_rates.size()) +
                                 " learning rates are given: give one of them");
  }
  if (options.devices.empty()) options.devices = {"cpu", "cpu"};
  if (options.devices.size() > kManyDevices) {
    throw hydra::InvalidArgument(std::to_string(options.devices.size()) +
                                 " devices are given, at most " + std::to_string(kManyDevices) +
                                 " can be");
  }
  for (const std::string& device : options.devices) {
    if (device != "cpu") {
      throw hydra::InvalidArgument("there is no device \"" + device +
                                   "\" in this build: write cpu, once per device");
    }
  }
  options.device_memory = hydra::parse_bytes(raw.device_memory);
  if (!raw.host_memory.empty()) options.host_memory = hydra::parse_bytes(raw.host_memory);
  resolve_storage(options, raw);
  if (raw.max_gradient_norm != 0) options.max_gradient_norm = raw.max_gradient_norm;
  options.encoding = hydra::parse_text_encoding(raw.text_encoding);
  hydra::parse_schedule_shape(options.schedule);
  hydra::make_policy(options.policy);
  require_warmup_within(options.warmup_steps, options.steps, "--steps");
  if (options.base_steps > 0) {
    require_warmup_within(options.warmup_steps, options.base_steps, "--base-steps");
  }
}

}  // namespace

std::optional<Options> parse_command_line(int argc, char** argv, int& exit_code) {
  CLI::App app{"Fine-tunes several GPT-2 models at once, each larger than its device"};
  Options options;
  options.model.layers = 6;
  options.model.width = 192;
  options.model.heads = 6;
  options.model.context = 128;
  Raw raw;
  declare(app, options, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help is no mistake; all mistakes end alike.
    exit_code = app.exit(error) == 0 ? console::kDone : console::kRefused;
    return std::nullopt;
  }
  resolve(options, raw);
  return options;
}

}  // namespace finetune
