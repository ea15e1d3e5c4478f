#include <ATen/ops/empty.h>

#include <algorithm>
#include <deque>
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
    return order_of(epoch)[static_cast<std::size_t>(index)];
  }

  // Jobs that share a source may be in different epochs, and a batch may span two, so the orders
  // used last are kept.
  const std::vector<std::int64_t>& order_of(std::int64_t epoch) HYDRA_REQUIRES(mutex) {
    const auto known = std::find_if(orders.begin(), orders.end(),
                                    [&](const Order& order) { return order.epoch == epoch; });
    if (known != orders.end()) {
      std::rotate(orders.begin(), known, known + 1);
    } else {
      if (orders.size() == kKeptOrders) orders.pop_back();
      orders.push_front({epoch, shuffled(epoch)});
      ++shuffles;
    }
    return orders.front().windows;
  }

  // Source: Durstenfeld, Algorithm 235: Random permutation, 1964.
  std::vector<std::int64_t> shuffled(std::int64_t epoch) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(windows));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    SplitMix64 random(mix_seed(options.seed, {static_cast<std::uint64_t>(epoch)}));
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[random.below(i + 1)]);
    }
    return order;
  }

  struct Order {
    std::int64_t epoch = 0;
    std::vector<std::int64_t> windows;
  };
  static constexpr std::size_t kKeptOrders = 8;

  std::shared_ptr<const std::vector<std::int32_t>> tokens;
  PackedWindowsOptions options;
  std::int64_t windows = 0;
  Mutex mutex;
  std::deque<Order> orders HYDRA_GUARDED_BY(mutex);  ///< the one used last first
  std::int64_t shuffles HYDRA_GUARDED_BY(mutex) = 0;
};

PackedWindows::PackedWindows(std::shared_ptr<const std::vector<std::int32_t>> tokens,
                             PackedWindowsOptions options)
    : impl_(std::make_unique<Impl>()) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const bool possible = options.batch_size >= 1 && options.batch_size <= kMost &&
                        options.context >= 1 && options.context <= kMost / options.batch_size;
  if (!possible) {
    throw InvalidArgument("batch_size and context must be at least 1, and their product at most " +
                          std::to_string(kMost) + " tokens; they are " +
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

std::int64_t PackedWindows::unused_tokens() const noexcept {
  return static_cast<std::int64_t>(impl_->tokens->size()) - 1 -
         impl_->windows * impl_->options.context;
}

std::int64_t PackedWindows::shuffles() const {
  MutexLock lock(impl_->mutex);
  return impl_->shuffles;
}

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
