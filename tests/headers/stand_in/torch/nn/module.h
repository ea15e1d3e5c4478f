#pragma once

namespace torch::nn {

class Module {
 public:
  virtual ~Module() = default;
};

}  // namespace torch::nn
