#pragma once

#include <stdexcept>
#include <string>

#include "hydra/core/bytes.h"

namespace hydra {

/// Names what went wrong, for programs; the message is for people.
enum class ErrorCode {
  kInvalidArgument,    ///< an option or argument that cannot be honoured
  kUnsupported,        ///< a model feature that Hydra refuses by name
  kDoesNotFit,         ///< a layer, job or step that no plan can fit into its budgets
  kOutOfDeviceMemory,  ///< a request beyond a device's budget at run time
  kOutOfHostMemory,    ///< a request beyond the host budget, or refused by the system
  kNonFinite,          ///< a loss or gradient that is NaN or infinite
  kData,               ///< a data set that is missing, unreadable, or ends early
  kLayer,              ///< an exception thrown by a layer
  kCallback,           ///< an exception thrown by a callback, or a decision out of range
  kDevice,             ///< a copy or device operation that failed
  kStorage,            ///< a drive that is full, missing, or failed a transfer
  kCorruption,         ///< bytes that came back from a drive other than they went
  kCancelled,          ///< the job was cancelled
  kSystem,             ///< the operating system refused something
  kInternal,           ///< a broken invariant of Hydra itself
};

/// Says who can mend it.
enum class ErrorSource { kUser, kLibrary, kSystem, kDevice };

/// Returns the stable spelling used in summaries, for example "out_of_device_memory".
const char* to_string(ErrorCode code);

/// Returns the system's words for an errno, for messages. Thread safety: thread-safe.
std::string system_message(int error);

/// Base of everything that Hydra throws.
///
/// The message ends with the run-time facts and the way out.
/// Thread safety: immutable.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, ErrorSource source, bool retryable, const std::string& message)
      : std::runtime_error(message), code_(code), source_(source), retryable_(retryable) {}

  ErrorCode code() const noexcept { return code_; }
  ErrorSource source() const noexcept { return source_; }
  /// True when the same operation may succeed when tried again unchanged.
  bool retryable() const noexcept { return retryable_; }

 private:
  ErrorCode code_;
  ErrorSource source_;
  bool retryable_;
};

/// An option or argument that cannot be honoured; nothing was started.
class InvalidArgument : public Error {
 public:
  explicit InvalidArgument(const std::string& message)
      : Error(ErrorCode::kInvalidArgument, ErrorSource::kUser, false, message) {}
};

/// A model feature that is refused by name when the model is built.
class Unsupported : public Error {
 public:
  explicit Unsupported(const std::string& message)
      : Error(ErrorCode::kUnsupported, ErrorSource::kUser, false, message) {}
};

/// Something that no plan can fit into the budgets; nothing was started.
class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(const std::string& message)
      : Error(ErrorCode::kDoesNotFit, ErrorSource::kUser, false, message) {}
};

/// A request beyond a device's budget. The device works on; only the asking operation is lost.
class OutOfDeviceMemory : public Error {
 public:
  OutOfDeviceMemory(const std::string& device, Bytes requested, Bytes in_use, Bytes budget);

  Bytes requested() const noexcept { return requested_; }
  Bytes in_use() const noexcept { return in_use_; }
  Bytes budget() const noexcept { return budget_; }

 private:
  Bytes requested_;
  Bytes in_use_;
  Bytes budget_;
};

/// A request beyond the host budget.
class OutOfHostMemory : public Error {
 public:
  explicit OutOfHostMemory(const std::string& message)
      : Error(ErrorCode::kOutOfHostMemory, ErrorSource::kUser, true, message) {}
};

/// A loss or gradient that is NaN or infinite; the job that met it stops.
class NonFinite : public Error {
 public:
  explicit NonFinite(const std::string& message)
      : Error(ErrorCode::kNonFinite, ErrorSource::kUser, false, message) {}
};

/// A data set that is missing, unreadable, empty, or ends early.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message)
      : Error(ErrorCode::kData, ErrorSource::kUser, false, message) {}
};

/// An exception that came out of a layer's code.
class LayerError : public Error {
 public:
  explicit LayerError(const std::string& message)
      : Error(ErrorCode::kLayer, ErrorSource::kUser, false, message) {}
};

/// An exception that came out of a job's callbacks, or a decision of theirs that is out of range.
class CallbackError : public Error {
 public:
  explicit CallbackError(const std::string& message)
      : Error(ErrorCode::kCallback, ErrorSource::kUser, false, message) {}
};

/// A device operation (a copy, a launch) that failed.
class DeviceError : public Error {
 public:
  DeviceError(bool retryable, const std::string& message)
      : Error(ErrorCode::kDevice, ErrorSource::kDevice, retryable, message) {}
};

/// A drive that is full, missing, or failed a transfer.
class StorageError : public Error {
 public:
  StorageError(bool retryable, const std::string& message)
      : Error(ErrorCode::kStorage, ErrorSource::kSystem, retryable, message) {}
};

/// Bytes that came back from a drive other than they went; what held them is lost.
class CorruptionError : public Error {
 public:
  explicit CorruptionError(const std::string& message)
      : Error(ErrorCode::kCorruption, ErrorSource::kSystem, false, message) {}
};

/// The outcome of a job that was cancelled.
class Cancelled : public Error {
 public:
  explicit Cancelled(const std::string& message)
      : Error(ErrorCode::kCancelled, ErrorSource::kUser, false, message) {}
};

/// The operating system refused something (memory, a thread, a file).
class SystemError : public Error {
 public:
  explicit SystemError(const std::string& message)
      : Error(ErrorCode::kSystem, ErrorSource::kSystem, false, message) {}
};

/// A broken invariant of Hydra itself: please report it.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message)
      : Error(ErrorCode::kInternal, ErrorSource::kLibrary, false, message) {}
};

}  // namespace hydra
