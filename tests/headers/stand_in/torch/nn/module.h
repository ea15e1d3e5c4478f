#pragma once

#include <string>

namespace torch::nn {

class Module {
 public:
  virtual ~Module() = default;
  const std::string& name() const noexcept;
};

}  // namespace torch::nn
