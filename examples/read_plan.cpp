// Reads plans before anything is trained: what would this model take under these budgets?

#include <torch/types.h>

#include <cstdio>

#include "hydra/hydra.h"

struct Tokens : hydra::DataSource {
  hydra::Batch batch(std::int64_t) override {
    const auto tokens = torch::arange(2 * 64).reshape({2, 64}).remainder(256);
    return {.rows = 2,
            .inputs = {tokens},
            .side = {{"targets", tokens}},
            .loss_denominator = 2 * 64,
            .tokens = 2 * 64};
  }
};

int main() {
  hydra::Gpt2Options options;
  options.vocabulary_size = 256;
  options.context = 64;
  options.layers = 6;
  options.width = 128;
  options.heads = 4;
  const hydra::JobOptions job{.name = "gpt2",
                              .model = hydra::make_gpt2(options),
                              .data = std::make_shared<Tokens>(),
                              .micro_batch_size = 1};
  std::vector<std::string> names;
  for (const auto& layer : job.model->layers()) names.push_back(layer.name);

  for (const char* memory : {"512KiB", "3MiB", "6MiB", "64MiB"}) {
    hydra::Runtime runtime({.devices = {{.name = "cpu0", .memory = hydra::parse_bytes(memory)}}});
    std::printf("with %s of device memory:\n", memory);
    try {
      const hydra::Plan plan = runtime.plan(job);
      std::printf("%s", plan.to_text(names).c_str());
      // The same as numbers, for programs.
      hydra::Bytes moved;
      for (const auto& shard : plan.shards) moved += shard.parts();
      std::printf("  %zu shards, %s of parameters, %.0f %% of a step is recomputation\n\n",
                  plan.shards.size(), to_string(moved).c_str(),
                  100 * hydra::seconds(plan.recomputation) / hydra::seconds(plan.predicted_step));
    } catch (const hydra::DoesNotFit& error) {
      std::printf("  refused: %s\n\n", error.what());
    }
  }
}
