#include "report/event_record.h"

#include <bit>
#include <span>

#include "hydra/io/crc32c.h"
#include "report/utf8.h"

namespace hydra {
namespace {

constexpr std::uint32_t kVarint = 0;
constexpr std::uint32_t k64Bit = 1;
constexpr std::uint32_t kLength = 2;
constexpr std::uint32_t k32Bit = 5;

template <typename T>
void put_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80U);
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint32_t field, std::uint32_t wire_type) {
  put_varint(out, field << 3 | wire_type);
}

void put_double(std::string& out, std::uint32_t field, double value) {
  put_key(out, field, k64Bit);
  put_little_endian(out, std::bit_cast<std::uint64_t>(value));
}

void put_float(std::string& out, std::uint32_t field, float value) {
  put_key(out, field, k32Bit);
  put_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_key(out, field, kLength);
  put_varint(out, bytes.size());
  out += bytes;
}

std::uint32_t masked_checksum(std::string_view bytes) {
  const std::uint32_t checksum = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(checksum, 15) + 0xA282EAD8U;
}

/// Zero is what a field that is left out means.
std::string event_at(double wall_time) {
  std::string event;
  if (std::bit_cast<std::uint64_t>(wall_time) != 0) put_double(event, 1, wall_time);
  return event;
}

}  // namespace

std::string version_event(double wall_time) {
  std::string event = event_at(wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string scalar_event(std::string_view tag, std::int64_t step, double value, double wall_time) {
  std::string scalar;
  if (!tag.empty()) put_bytes(scalar, 1, valid_utf8(tag));
  put_float(scalar, 2, static_cast<float>(value));
  std::string summary;
  put_bytes(summary, 1, scalar);
  std::string event = event_at(wall_time);
  if (step != 0) {
    put_key(event, 2, kVarint);
    put_varint(event, static_cast<std::uint64_t>(step));
  }
  put_bytes(event, 5, summary);
  return event;
}

std::string framed(std::string_view record) {
  std::string bytes;
  put_little_endian(bytes, static_cast<std::uint64_t>(record.size()));
  put_little_endian(bytes, masked_checksum(bytes));
  bytes += record;
  put_little_endian(bytes, masked_checksum(record));
  return bytes;
}

}  // namespace hydra
