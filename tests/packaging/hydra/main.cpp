// A user of the library: trains a small model and compares it with the plain loop.

#include <cstdio>
#include <string>

#include "hydra/hydra.h"
#include "hydra/testing/plain_loop.h"
#include "hydra/testing/small_models.h"

int main() {
  const hydra::JobOptions job = hydra::testing::small_job("mlp", 1, 3);
  hydra::Runtime runtime({.devices = {{.name = "cpu0", .memory = hydra::parse_bytes("64MiB")}},
                          .host_memory = hydra::parse_bytes("64MiB"),
                          .threads_per_device = 1});
  const std::string trained = runtime.submit(job).parameters_sha256();
  const std::string expected =
      hydra::testing::fingerprint(hydra::testing::plain_loop(job).weights, *job.model);
  std::printf("trained  %s\nexpected %s\n", trained.c_str(), expected.c_str());
  return trained == expected ? 0 : 1;
}
