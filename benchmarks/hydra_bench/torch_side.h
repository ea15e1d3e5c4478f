#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "hydra/device/virtual_device.h"
#include "hydra/engine/job_options.h"
#include "hydra/models/gpt2.h"
#include "hydra/testing/torch_gpt2.h"

namespace bench {

/// An ordinary LibTorch training loop in memory, at its best: fused AdamW, one graph per
/// micro-batch, and memory from pages that stay warm unless it is told otherwise.
class TorchSide {
 public:
  struct Options {
    std::int64_t micro_batch_size = 1;
    int threads = 1;
    bool warm_pages = true;
  };
  TorchSide(const hydra::Gpt2Options& model, const hydra::Weights& initial,
            std::shared_ptr<hydra::DataSource> data, Options options);
  ~TorchSide();

  /// Trains `steps` steps and returns their losses. Blocks: meanwhile.
  std::vector<double> train(std::int64_t steps);
  /// Bytes that the loop has held at most: parameters, moments, gradients, graph.
  hydra::Bytes peak() const;

 private:
  struct State;
  void run(const std::function<void()>& task);
  double step(std::int64_t number);

  hydra::Gpt2Options model_;
  std::shared_ptr<hydra::DataSource> data_;
  Options options_;
  hydra::VirtualDevice device_;  // counts the bytes, and keeps pages warm
  std::unique_ptr<State> state_;
  std::int64_t next_step_ = 0;
};

}  // namespace bench
