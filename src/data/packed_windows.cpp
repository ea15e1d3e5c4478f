#include <ATen/ops/empty.h>

#include <numeric>
#include <string>
#include <utility>

#include "hydra/core/error.h"
#include "hydra/core/mutex.h"
#include "hydra/core/random.h"
#include "hydra/data/text.h"

namespace hydra {

struct PackedWindows::Impl {
  /// Returns the window that stands at `position` in the endless sequence of epochs.
  std::int64_t window_at(std::int64_t position) {
    const std::int64_t epoch = position / windows;
    const std::int64_t index = position % windows;
    if (!options.shuffle) return index;
    MutexLock lock(mutex);
    if (shuffled_epoch != epoch) {
      shuffle(epoch);
      shuffled_epoch = epoch;
    }
    return order[static_cast<std::size_t>(index)];
  }

  // Source: Durstenfeld, Algorithm 235: Random permutation, 1964.
  void shuffle(std::int64_t epoch) HYDRA_REQUIRES(mutex) {
    order.resize(static_cast<std::size_t>(windows));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    SplitMix64 random(mix_seed(options.seed, {static_cast<std::uint64_t>(epoch)}));
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[random.below(i + 1)]);
    }
  }

  std::shared_ptr<const std::vector<std::int32_t>> tokens;
  PackedWindowsOptions options;
  std::int64_t windows = 0;
  Mutex mutex;
  std::int64_t shuffled_epoch HYDRA_GUARDED_BY(mutex) = -1;
  std::vector<std::int64_t> order HYDRA_GUARDED_BY(mutex);
};

PackedWindows::PackedWindows(std::shared_ptr<const std::vector<std::int32_t>> tokens,
                             PackedWindowsOptions options)
    : impl_(std::make_unique<Impl>()) {
  if (options.batch_size < 1 || options.context < 1) {
    throw InvalidArgument("batch_size and context must be at least 1, are " +
                          std::to_string(options.batch_size) + " and " +
                          std::to_string(options.context));
  }
  const auto count = static_cast<std::int64_t>(tokens->size());
  if (count < options.context + 1) {
    throw DataError("the text has " + std::to_string(count) + " tokens, one window of context " +
                    std::to_string(options.context) + " needs " +
                    std::to_string(options.context + 1) +
                    ": give a longer text or a smaller context");
  }
  impl_->windows = (count - 1) / options.context;
  impl_->tokens = std::move(tokens);
  impl_->options = options;
}

PackedWindows::~PackedWindows() = default;

std::int64_t PackedWindows::windows() const noexcept { return impl_->windows; }

Batch PackedWindows::batch(std::int64_t step) {
  if (step < 0) throw InvalidArgument("there is no batch of step " + std::to_string(step));
  const PackedWindowsOptions& options = impl_->options;
  const auto shape = {options.batch_size, options.context};
  at::Tensor inputs = at::empty(shape, at::TensorOptions().dtype(at::kLong));
  at::Tensor targets = at::empty(shape, at::TensorOptions().dtype(at::kLong));
  auto* input = inputs.mutable_data_ptr<std::int64_t>();
  auto* target = targets.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < options.batch_size; ++row) {
    const std::int64_t window = impl_->window_at(step * options.batch_size + row);
    const std::int32_t* from = impl_->tokens->data() + window * options.context;
    for (std::int64_t t = 0; t < options.context; ++t) {
      *input++ = from[t];
      *target++ = from[t + 1];
    }
  }
  Batch batch;
  batch.rows = options.batch_size;
  batch.inputs = {inputs};
  batch.side = {{"targets", targets}};
  batch.tokens = options.batch_size * options.context;
  batch.loss_denominator = static_cast<double>(batch.tokens);
  return batch;
}

}  // namespace hydra
