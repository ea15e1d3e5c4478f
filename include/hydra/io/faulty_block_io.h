#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "hydra/core/clock.h"
#include "hydra/io/block_io.h"

namespace hydra {

/// What goes wrong with a FaultyBlockIo. Operations are counted from 0 as they are submitted, those
/// that continue a short transfer included.
struct BlockFaults {
  enum class Kind {
    kNone,
    kError,    ///< fails with `error` and moves nothing
    kShort,    ///< moves half of it
    kNothing,  ///< moves nothing and says so
    kFlipBit,  ///< moves all, with one bit of the first block wrong in memory (reads) or on the
               ///< drive (writes)
    kLost,     ///< says that it has written, and has not
    kBroken,   ///< the interface fails for good: this and all later ones come back as failed
  };
  Kind kind = Kind::kNone;
  std::int64_t first = 0;                        ///< the operation that it happens to
  std::int64_t count = 1;                        ///< and how many after it
  int error = 5;                                 ///< errno; EIO
  std::optional<std::uint64_t> disorder_seed{};  ///< completions come late and in another order
};

/// A decorator that plants faults for tests; otherwise as the one underneath.
std::unique_ptr<BlockIo> make_faulty_block_io(std::unique_ptr<BlockIo> inner, BlockFaults faults);

}  // namespace hydra
