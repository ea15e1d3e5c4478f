#include "engine/task_pool.h"

#include <gtest/gtest.h>

#include <barrier>

namespace hydra {
namespace {

// Updates run on these, not on OpenMP's: what a launcher puts into OMP_NUM_THREADS (the environment
// of this test) leaves them as many as were asked for.
TEST(TaskPoolTest, AsManyTasksRunAtOnceAsThereAreThreads) {
  TaskPool pool(3);
  std::barrier together(3);
  for (int i = 0; i < 30; ++i) pool.submit([&] { together.arrive_and_wait(); });
  pool.close();  // returns only when three at a time have met
}

}  // namespace
}  // namespace hydra
