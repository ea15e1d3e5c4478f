// Hydra's benchmarks: each is a subcommand that compares two things in one run.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>

#include "hydra/core/error.h"
#include "offload.h"

namespace bench {
namespace {

void declare(CLI::App& command, OffloadOptions& options, std::string& device_memory,
             std::string& pages) {
  command.add_option("--layers", options.model.layers, "Blocks")->capture_default_str();
  command.add_option("--width", options.model.width, "Width")->capture_default_str();
  command.add_option("--heads", options.model.heads, "Attention heads")->capture_default_str();
  command.add_option("--vocabulary", options.model.vocabulary_size, "Vocabulary")
      ->capture_default_str();
  command.add_option("--dropout", options.model.dropout, "Dropout rate of both sides")
      ->capture_default_str();
  command.add_option("--batch-size", options.batch_size, "Sequences per step")
      ->capture_default_str();
  command.add_option("--context", options.context, "Tokens per sequence")->capture_default_str();
  command.add_option("--micro-batch-size", options.micro_batch_size, "Hydra's, in sequences")
      ->capture_default_str();
  command
      .add_option("--plain-micro-batch-size", options.torch_micro_batch_size,
                  "The plain loop's, in sequences")
      ->capture_default_str();
  command.add_option("--threads", options.threads, "Torch threads of both sides; 0: all cores")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--pairs", options.pairs, "Pairs to measure")->capture_default_str();
  command.add_option("--steps", options.steps, "Measured steps per side and pair")
      ->capture_default_str();
  command.add_option("--device-memory", device_memory,
                     "Hydra's device budget (default: the smaller of a quarter of the plain peak "
                     "and three quarters of parameters and gradients)");
  command
      .add_option("--plain-memory", pages,
                  "Where the plain loop's memory comes from: warm "
                  "(pages that are kept) or malloc")
      ->check(CLI::IsMember({"warm", "malloc"}))
      ->capture_default_str();
  command.add_option("--json", options.json, "Write the report for machines to this file");
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  if (!out) throw hydra::SystemError("cannot write " + path);
}

int run(int argc, char** argv) {
  CLI::App app{"Compares Hydra with other ways of training, both in one run"};
  app.require_subcommand(1);
  OffloadOptions options;
  options.model = {.layers = 12, .width = 384, .heads = 6, .dropout = 0.0};
  std::string device_memory;
  std::string pages = "warm";
  CLI::App* offload = app.add_subcommand(
      "offload", "A model larger than its device against a LibTorch loop with all of it in memory");
  declare(*offload, options, device_memory, pages);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  options.model.context = options.context;
  options.warm_pages = pages == "warm";
  if (!device_memory.empty()) options.device_memory = hydra::parse_bytes(device_memory);
  const OffloadReport report = run_offload(options);
  std::cout << to_text(report);
  if (!options.json.empty()) write_file(options.json, to_json(report));
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  try {
    return bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "hydra_bench: " << error.what() << "\n";
    return 2;
  }
}
