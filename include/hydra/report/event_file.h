#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hydra {

/// Returns the folder that `EventFile` gives a job: the name itself where it is safe as a file
/// name, else a safe form of it with part of its digest, so that two names never share one.
/// The rule is in docs/formats/event_file.md. At most 213 bytes, never empty. Total: any bytes.
std::string run_directory_name(std::string_view name);

/// Writes one job's scalars as a TensorBoard event file: `tensorboard --logdir DIRECTORY`.
///
/// The format is described in docs/formats/event_file.md. The file holds whole records only.
/// Destruction writes what is buffered and forgets errors; `close` tells them.
/// Thread safety: thread-compatible.
class EventFile {
 public:
  /// Makes `directory`, the run's folder in it, and a new file there that holds the version record.
  /// `run` is any text, for example a job's name: see `run_directory_name`. Errors: SystemError
  /// with path and cause when one of them cannot be made; folders that were made stay.
  EventFile(const std::string& directory, std::string_view run);
  ~EventFile();
  EventFile(EventFile&&) noexcept;
  EventFile& operator=(EventFile&&) = delete;

  const std::string& path() const noexcept;

  /// Adds a value of the series `tag`; TensorBoard groups tags by what is before their first "/".
  /// Units: `wall_time` in seconds since the epoch. Kept as a float; NaN and infinities are kept.
  /// Blocks: on the drive when 64 KiB have gathered; else it only buffers.
  /// Errors: as `flush`; InternalError after `close`.
  void scalar(std::string_view tag, std::int64_t step, double value, double wall_time);

  /// Hands what is buffered to the system, where readers see it.
  /// Errors: SystemError with path and cause (a full drive, a limit); what was buffered is lost,
  /// the file ends with its last whole record and may be used further.
  void flush();

  /// Flushes and closes; nothing may follow but `close`, which then does nothing.
  /// Errors: as `flush`; the file is closed all the same.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
