#pragma once

#include <memory>
#include <string>

#include "hydra/core/trace.h"

namespace hydra {

/// Collects trace events and writes them in Chrome's trace event form, which Perfetto reads.
///
/// One process, a named thread per track, complete ("X"), instant, counter and flow events, times
/// in microseconds. Errors: SystemError with path and cause, from `write` and, where it can be told
/// beforehand, from the constructor (OutputFile).
class TraceFile final : public TraceSink {
 public:
  explicit TraceFile(std::string path);
  ~TraceFile() override;

  bool enabled() const noexcept override;
  void record(TraceEvent event) noexcept override;
  /// Writes everything recorded so far, as OutputFile does.
  void write();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
