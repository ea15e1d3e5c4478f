#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "hydra/core/mutex.h"
#include "hydra/core/trace.h"

namespace hydra {

/// A trace that a test looks at.
class KeptTrace final : public TraceSink {
 public:
  bool enabled() const noexcept override { return true; }
  void record(TraceEvent event) noexcept override {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
  }
  std::vector<TraceEvent> of(TraceEvent::Kind kind, const std::string& category) const {
    MutexLock lock(mutex_);
    std::vector<TraceEvent> found;
    std::copy_if(events_.begin(), events_.end(), std::back_inserter(found),
                 [&](const TraceEvent& e) { return e.kind == kind && e.category == category; });
    return found;
  }

 private:
  mutable Mutex mutex_;
  std::vector<TraceEvent> events_ HYDRA_GUARDED_BY(mutex_);
};

}  // namespace hydra
