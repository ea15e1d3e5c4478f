#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hydra/core/bytes.h"

namespace hydra {

/// Element types of the safetensors format, in the format's own order.
enum class StoredDtype : std::uint8_t {
  kBool,
  kF4,      ///< 4 bits
  kF6E2M3,  ///< 6 bits
  kF6E3M2,  ///< 6 bits
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,  ///< complex, two 32-bit floats
  kF64,
  kI64,
  kU64,
};

/// Returns the format's name, for example "BF16".
std::string_view to_string(StoredDtype dtype);

/// Returns the bits of one element.
int bits_of(StoredDtype dtype);

/// A tensor without its bytes.
struct TensorSpec {
  std::string name{};
  StoredDtype dtype = StoredDtype::kF32;
  std::vector<std::int64_t> shape{};  ///< in elements; empty for a scalar

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// Returns the bytes of a tensor, row-major and without gaps.
/// Errors: InvalidArgument names the tensor when a dimension is negative, the product passes 63
/// bits, or elements of less than a byte do not fill whole bytes.
Bytes bytes_of(const TensorSpec& tensor);

/// Text that travels with the tensors, for example {"format", "pt"}, which transformers wants.
using TensorMetadata = std::map<std::string, std::string>;

}  // namespace hydra
