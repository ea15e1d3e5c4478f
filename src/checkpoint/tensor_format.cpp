#include "hydra/checkpoint/tensor_format.h"

#include <limits>

#include "checkpoint/stored_dtypes.h"
#include "data/shown_text.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

[[noreturn]] void refuse(const TensorSpec& tensor, const std::string& what) {
  throw InvalidArgument("tensor " + in_quotes(tensor.name) + " of " +
                        std::string(to_string(tensor.dtype)) + " " + shape_text(tensor.shape) +
                        " " + what);
}

}  // namespace

std::string_view to_string(StoredDtype dtype) { return detail::row_of(dtype).name; }

int bits_of(StoredDtype dtype) { return detail::row_of(dtype).bits; }

Bytes bytes_of(const TensorSpec& tensor) {
  std::int64_t bits = bits_of(tensor.dtype);
  for (const std::int64_t size : tensor.shape) {
    if (size < 0) refuse(tensor, "has a negative dimension");
    if (size > 0 && bits > std::numeric_limits<std::int64_t>::max() / size) {
      refuse(tensor, "has more bits than 63-bit numbers count");
    }
    bits *= size;
  }
  if (bits % 8 != 0) refuse(tensor, "does not fill whole bytes");
  return Bytes(bits / 8);
}

}  // namespace hydra
