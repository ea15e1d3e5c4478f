// Every thread that the library starts may be refused: the outcome is a typed error, or the run.

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

#include "../engine/engine_fixture.h"

namespace {
std::atomic<int> threads_until_refusal{-1};  // negative: none is refused
}

// Stands before libc's for the whole process.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_until_refusal >= 0 && threads_until_refusal-- == 0) return EAGAIN;
  return real(thread, attributes, start, argument);
}

namespace hydra {
namespace {

TEST(ThreadStartTest, EveryThreadThatIsRefusedIsATypedErrorAndNothingHangs) {
  const JobOptions job = testing::small_job("mlp", 80, 2);
  const auto expected = plain(job);
  const Bytes budget = smallest_budget(job);
  int refused = 0;
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 100);
    threads_until_refusal = n;
    bool failed = false;
    try {
      Runtime runtime(test_runtime(2, budget));
      const JobHandle handle = runtime.submit(job);
      handle.get();
      EXPECT_TRUE(same_bits(handle.weights(), expected.weights));
    } catch (const SystemError& error) {
      failed = true;
      EXPECT_NE(std::string(error.what()).find("cannot start"), std::string::npos) << error.what();
    }
    const bool was_due = threads_until_refusal < 0;
    threads_until_refusal = -1;
    if (!was_due) break;
    EXPECT_TRUE(failed) << "thread " << n;
    ++refused;
  }
  // Two devices with a worker and two copy streams each, the coordinator, two kinds of workers, a
  // loader.
  EXPECT_EQ(refused, 2 * 3 + 4);
}

}  // namespace
}  // namespace hydra
