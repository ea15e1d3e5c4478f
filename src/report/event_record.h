#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// TensorBoard's records as bytes; docs/formats/event_file.md describes them.
namespace hydra {

/// Returns the Event that begins every file.
std::string version_event(double wall_time);
/// Returns the Event of one scalar.
std::string scalar_event(std::string_view tag, std::int64_t step, double value, double wall_time);
/// Returns a record with its length and checksums.
std::string framed(std::string_view record);

}  // namespace hydra
