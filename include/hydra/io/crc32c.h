#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hydra {

/// Returns the CRC-32C (Castagnoli) of `data`; give the value of what came before as `seed` to go
/// on. Uses the processor's instruction where it has one; the result is the same.
/// Source: Castagnoli, Bräuer and Herrmann, Optimization of Cyclic Redundancy-Check Codes with 24
/// and 32 Parity Bits, 1993.
/// Thread safety: thread-safe.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t seed = 0) noexcept;

/// The same by table alone.
std::uint32_t crc32c_by_table(std::span<const std::byte> data, std::uint32_t seed = 0) noexcept;

}  // namespace hydra
