#include "options.h"

#include <CLI/CLI.hpp>

namespace finetune {
namespace {

/// Command-line values that need a second look.
struct Raw {
  std::string size;
  std::string device_memory = "24MiB";
  std::string host_memory;
  std::vector<std::string> storage;
  std::string storage_size;
  std::string host_cache;
  std::int64_t models = 0;
  double max_gradient_norm = 0;
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> width;
  std::optional<std::int64_t> heads;
};

void declare(CLI::App& app, Options& options, Raw& raw) {
  app.add_option("--text", options.text, "Text file to train on")->required();
  app.add_option("--learning-rate", options.learning_rates,
                 "Comma-separated rates: one model is fine-tuned with each")
      ->delimiter(',');
  app.add_option("--models", raw.models,
                 "Number of models, when no rates are given (rates double from 1e-4)");
  app.add_option("--size", raw.size, "A published size: gpt2, gpt2-medium, gpt2-large, gpt2-xl");
  app.add_option("--layers", raw.layers, "Blocks of the model (default 6)");
  app.add_option("--width", raw.width, "Width of the model (default 192)");
  app.add_option("--heads", raw.heads, "Attention heads (default 6)");
  app.add_option("--context", options.model.context, "Tokens per window")->capture_default_str();
  app.add_option("--dropout", options.model.dropout, "Dropout rate")->capture_default_str();
  app.add_option("--devices", options.devices, "Comma-separated devices: cpu,cpu is two")
      ->delimiter(',');
  app.add_option("--threads", options.threads,
                 "Torch threads per device (default: the cores shared among the devices); "
                 "results depend on it")
      ->check(CLI::NonNegativeNumber);
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
  app.add_option("--steps", options.steps, "Steps of each fine-tune")->capture_default_str();
  app.add_option("--base-steps", options.base_steps,
                 "Steps of a base model that the fine-tunes start from; 0 starts from scratch")
      ->capture_default_str();
  app.add_option("--base-learning-rate", options.base_learning_rate, "Rate of the base model")
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Windows per mini-batch")
      ->capture_default_str();
  app.add_option("--micro-batch-size", options.micro_batch_size,
                 "Windows that go through a layer at once")
      ->capture_default_str();
  app.add_option("--warmup-steps", options.warmup_steps, "Steps of linear warm-up")
      ->capture_default_str();
  app.add_option("--schedule", options.schedule, "constant, linear or cosine")
      ->capture_default_str();
  app.add_option("--weight-decay", options.weight_decay, "AdamW's decay")->capture_default_str();
  app.add_option("--max-gradient-norm", raw.max_gradient_norm,
                 "Clip the global gradient norm; 0 does not")
      ->capture_default_str();
  app.add_option("--policy", options.policy,
                 "lrtf, fifo, round-robin, shortest, priority or random")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights, dropout and shuffling")
      ->capture_default_str();
  app.add_option("--json", options.json, "Write a summary for machines to this file");
  app.add_option("--trace", options.trace, "Write a Chrome/Perfetto trace to this file");
  app.add_option("--metrics", options.metrics, "Append a JSON line per job and step to this file");
  app.add_option("--tensorboard", options.tensorboard,
                 "Write TensorBoard event files below this directory");
  app.add_flag("--plan", options.plan_only, "Print the plan and stop");
  app.add_flag("--quiet", options.quiet, "No progress, only the table at the end");
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
    exit_code = app.exit(error);
    return std::nullopt;
  }
  resolve(options, raw);
  return options;
}

}  // namespace finetune
