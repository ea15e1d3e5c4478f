#pragma once

namespace torch::nn {
class Sequential;
}  // namespace torch::nn
