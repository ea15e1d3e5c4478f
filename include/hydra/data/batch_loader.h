#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "hydra/data/data_source.h"

namespace hydra {

/// Calls a data source on a thread of its own, a bounded number of steps ahead.
///
/// Thread safety: `try_take`, `stop` and `close` from one thread.
class BatchLoader {
 public:
  /// Loads steps first_step .. end_step - 1. `on_ready` is called on the loader's thread after each
  /// batch (or the failure) has become available; it must be brief. Errors: InvalidArgument for no
  /// source or a queue depth of 0; SystemError when no thread can be started.
  BatchLoader(std::shared_ptr<DataSource> source, std::int64_t first_step, std::int64_t end_step,
              std::size_t queue_depth, std::function<void()> on_ready);
  ~BatchLoader();

  /// Moves the next step's batch to `batch` and returns true, or returns false when it is not ready
  /// yet. Errors: rethrows what the source threw, once the batches before it are taken.
  bool try_take(Batch& batch);
  /// Stops after the batch at work, without waiting for it: `on_stopped` is called once the source
  /// will not be called any more, on the loader's thread or on this one. At most one call.
  void stop(std::function<void()> on_stopped);
  /// Stops and waits. Blocks: until the source's present call returns.
  void close() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
