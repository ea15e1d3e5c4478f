#include "hydra/core/error.h"

#include <system_error>

namespace hydra {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kDoesNotFit:
      return "does_not_fit";
    case ErrorCode::kOutOfDeviceMemory:
      return "out_of_device_memory";
    case ErrorCode::kOutOfHostMemory:
      return "out_of_host_memory";
    case ErrorCode::kNonFinite:
      return "non_finite";
    case ErrorCode::kData:
      return "data";
    case ErrorCode::kLayer:
      return "layer";
    case ErrorCode::kCallback:
      return "callback";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kStorage:
      return "storage";
    case ErrorCode::kCorruption:
      return "corruption";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kSystem:
      return "system";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string system_message(int error) { return std::generic_category().message(error); }

OutOfDeviceMemory::OutOfDeviceMemory(const std::string& device, Bytes requested, Bytes in_use,
                                     Bytes budget)
    : Error(ErrorCode::kOutOfDeviceMemory, ErrorSource::kDevice, true,
            "device " + device + " is out of memory: " + to_string(requested) + " asked for, " +
                to_string(in_use) + " in use, budget " + to_string(budget) +
                ": raise the device's memory or lower the micro-batch size"),
      requested_(requested),
      in_use_(in_use),
      budget_(budget) {}

}  // namespace hydra
