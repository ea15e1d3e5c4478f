#pragma once

#include <memory>

#include "hydra/optim/optimizer.h"

// Compiled once per instruction set and chosen at run time. All give the same bits: only additions,
// multiplications, divisions and square roots, which IEEE 754 rounds exactly, and no contraction.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define HYDRA_VECTORISED \
  __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3"), noinline))
#else
#define HYDRA_VECTORISED __attribute__((noinline))
#endif

namespace hydra {

/// While it lives, this thread's floating-point instructions take numbers below the smallest normal
/// one for zero and return zero for them.
///
/// A moment whose gradient stays away fades until its numbers are that small, and then costs some
/// hundred cycles per operation instead of one. The passes are called, not inlined, so that none of
/// their arithmetic is moved out of its life.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() noexcept : before_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(before_ | kFlushToZero | kDenormalsAreZero);
  }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(before_); }

 private:
  static constexpr unsigned kFlushToZero = 1U << 15;
  static constexpr unsigned kDenormalsAreZero = 1U << 6;
  unsigned before_;
#elif defined(__aarch64__)
  FlushDenormals() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(before_ | kFlushToZero));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  static constexpr unsigned long kFlushToZero = 1UL << 24;
  unsigned long before_;
#else
#error "say here how this processor is told to flush denormal numbers"
#endif

 public:
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
};

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& options);
std::unique_ptr<Optimizer> make_sgd(const SgdOptions& options);

}  // namespace hydra
