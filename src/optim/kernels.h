#pragma once

#include <memory>

#include "hydra/optim/optimizer.h"

// Compiled once per instruction set and chosen at run time. All give the same bits: only additions,
// multiplications, divisions and square roots, which IEEE 754 rounds exactly, and no contraction.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define HYDRA_VECTORISED \
  __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define HYDRA_VECTORISED
#endif

namespace hydra {

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& options);
std::unique_ptr<Optimizer> make_sgd(const SgdOptions& options);

}  // namespace hydra
