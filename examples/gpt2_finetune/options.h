#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hydra/hydra.h"

namespace finetune {

/// What the command line asks for.
struct Options {
  std::string text;
  hydra::TextEncoding encoding = hydra::TextEncoding::kUtf8;
  hydra::Gpt2Options model;
  std::vector<double> learning_rates;
  std::vector<std::string> devices;
  int threads = 0;  ///< per device; 0 shares the cores
  hydra::Bytes device_memory;
  hydra::Bytes host_memory;                 ///< 0: chosen from the machine
  std::vector<hydra::DriveOptions> drives;  ///< of the storage tier; empty: there is none
  hydra::Bytes host_cache;                  ///< of host_memory, over storage; 0: half of it
  std::int64_t steps = 40;
  std::int64_t base_steps = 0;  ///< 0: the models start from random weights
  double base_learning_rate = 1e-3;
  std::int64_t batch_size = 8;
  std::int64_t micro_batch_size = 2;
  std::int64_t warmup_steps = 0;
  std::string schedule = "constant";
  double weight_decay = 0.01;
  std::optional<double> max_gradient_norm;
  std::string policy = "lrtf";
  std::uint64_t seed = 1;
  std::string json;
  std::string trace;
  std::string metrics;
  std::string tensorboard;
  bool plan_only = false;
  bool quiet = false;
};

/// Reads the command line. Returns nothing when the program should end with `exit_code` (help, or a
/// mistake that has been explained).
std::optional<Options> parse_command_line(int argc, char** argv, int& exit_code);

}  // namespace finetune
