#pragma once

#include <functional>
#include <memory>

#include "hydra/io/block_io.h"

namespace hydra {

/// Test setting: what goes wrong with a ring's system calls. Each is asked before the call and
/// returns 0, or the negated errno that is met in its place.
struct UringFaults {
  std::function<int()> submit{};
  std::function<int()> wait{};
};

/// As make_uring_block_io in block_io.h.
std::unique_ptr<BlockIo> make_uring_block_io(int file, int depth, UringFaults faults);

}  // namespace hydra
