#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/model/schema.h"

namespace hydra {

/// Where each parameter and buffer of one shard lies in the shard's flat parts.
///
/// Units: offsets in bytes from the start of the part, multiples of 64; sizes of parts likewise.
/// Tied parameters lie in parts of their own, at offset 0.
struct FlatLayout {
  struct Entry {
    std::int64_t layer = 0;      ///< index in the model
    std::int64_t parameter = 0;  ///< index in ModelSchema::Layer::parameters (or buffers)
    Bytes offset;
    std::int64_t elements = 0;
  };
  struct TiedUse {
    std::int64_t layer = 0;
    std::int64_t parameter = 0;
    std::int64_t tie = 0;  ///< index into ModelSchema::ties
    std::int64_t use = 0;
  };

  std::int64_t first_layer = 0;
  std::int64_t end_layer = 0;  ///< one past the last
  std::vector<Entry> trainable;
  std::vector<Entry> frozen;
  std::vector<Entry> buffers;
  std::vector<TiedUse> tied;
  Bytes trainable_bytes;  ///< also the size of the flat gradient and of each moment
  Bytes frozen_bytes;
  Bytes buffer_bytes;
};

FlatLayout make_layout(const ModelSchema& schema, std::int64_t first_layer, std::int64_t end_layer);

/// The size of a tied parameter's part (and of one accumulator).
Bytes tie_bytes(const ModelSchema& schema, std::int64_t tie);

}  // namespace hydra
