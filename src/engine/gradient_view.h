#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hydra {

/// One parameter's whole gradient in host memory, for the callback that edits it.
struct GradientView {
  std::string name;  ///< full
  std::vector<std::int64_t> shape;
  float* data = nullptr;
  std::int64_t elements = 0;
  double square_sum = 0;
  std::optional<std::size_t> tie;  ///< which; else the parameter is:
  std::size_t shard = 0;
  std::size_t entry = 0;  ///< in FlatLayout::trainable
};

}  // namespace hydra
