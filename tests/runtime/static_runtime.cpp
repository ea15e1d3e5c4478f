// Holds a runtime in a static object while a job runs, and returns from main (or
// calls exit, there or on a thread of its own).

#include <cstdlib>
#include <string>
#include <thread>

#include "hydra/runtime/runtime.h"
#include "hydra/testing/small_models.h"

namespace {

hydra::RuntimeOptions options() {
  hydra::RuntimeOptions made;
  made.devices = {{.name = "cpu0", .memory = hydra::Bytes(1 << 20)}};
  made.host_memory = hydra::Bytes(std::int64_t{1} << 28);
  made.threads_per_device = 1;
  return made;
}

hydra::Runtime& runtime() {
  static hydra::Runtime instance(options());
  return instance;
}

}  // namespace

int main(int argc, char** argv) {
  const hydra::JobHandle job = runtime().submit(hydra::testing::small_job("gpt2", 1, 100000));
  while (job.metrics().empty()) {
  }
  const std::string end = argc > 1 ? argv[1] : "";
  if (end == "exit") std::exit(0);
  if (end == "thread") std::thread([] { std::exit(0); }).join();
  return 0;
}
