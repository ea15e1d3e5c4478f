#include "checkpoint/positioned_file.h"
#include "checkpoint/safetensors_header.h"
#include "data/shown_text.h"
#include "hydra/checkpoint/safetensors.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

using detail::PositionedFile;
using detail::SafetensorsHeader;

constexpr std::int64_t kLengthBytes = 8;

/// Returns the bytes of the JSON, which fit the format and the file.
std::int64_t read_header_length(const PositionedFile& file, std::int64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    throw DataError(file.path() + " has " + std::to_string(file_bytes) +
                    " bytes: no safetensors file is that short");
  }
  std::byte raw[kLengthBytes];
  file.read_at(0, raw);
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i > 0; --i) {
    length = length << 8 | std::to_integer<std::uint64_t>(raw[i - 1]);
  }
  if (length < detail::kSmallestHeader || length > detail::kLargestHeader) {
    throw DataError(file.path() + ": a header of " + std::to_string(length) +
                    " bytes is outside the format's " + std::to_string(detail::kSmallestHeader) +
                    " to " + std::to_string(detail::kLargestHeader) + ": is it safetensors?");
  }
  const auto bytes = static_cast<std::int64_t>(length);
  if (bytes > file_bytes - kLengthBytes) {
    throw DataError(file.path() + ": a header of " + std::to_string(bytes) +
                    " bytes does not fit the file of " + std::to_string(file_bytes) +
                    ": it was cut off, fetch it again");
  }
  return bytes;
}

}  // namespace

struct SafetensorsReader::Impl {
  explicit Impl(const std::string& path) : file(PositionedFile::open_for_reading(path)) {
    const std::int64_t file_bytes = file.size();
    const std::int64_t header_bytes = read_header_length(file, file_bytes);
    std::string json(static_cast<std::size_t>(header_bytes), '\0');
    file.read_at(kLengthBytes, std::as_writable_bytes(std::span(json)));
    data_begin = kLengthBytes + header_bytes;
    header = detail::parse_safetensors_header(json, file_bytes - data_begin, path);
    names = detail::TensorNames(header.tensors);
  }

  PositionedFile file;
  std::int64_t data_begin = 0;
  SafetensorsHeader header;
  detail::TensorNames names{{}};
};

SafetensorsReader::SafetensorsReader(const std::string& path)
    : impl_(std::make_unique<Impl>(path)) {}
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;
SafetensorsReader::~SafetensorsReader() = default;

const std::string& SafetensorsReader::path() const noexcept { return impl_->file.path(); }

const std::vector<TensorSpec>& SafetensorsReader::tensors() const noexcept {
  return impl_->header.tensors;
}

const TensorMetadata& SafetensorsReader::metadata() const noexcept {
  return impl_->header.metadata;
}

const TensorSpec* SafetensorsReader::find(std::string_view name) const noexcept {
  const std::size_t place = impl_->names.find(name);
  return place == detail::TensorNames::kNone ? nullptr : &impl_->header.tensors[place];
}

void SafetensorsReader::read(std::string_view name, Bytes offset, std::span<std::byte> into) const {
  const std::size_t place = impl_->names.find(name);
  if (place == detail::TensorNames::kNone) {
    throw InvalidArgument(path() + " has no tensor " + in_quotes(name));
  }
  const Bytes size = bytes_of(impl_->header.tensors[place]);
  if (offset < Bytes(0) || offset > size || into.size() > (size - offset).size()) {
    throw InvalidArgument(path() + ": " + std::to_string(into.size()) + " bytes from byte " +
                          std::to_string(offset.count()) + " on are beyond tensor " +
                          in_quotes(name) + " of " + std::to_string(size.count()) + " bytes");
  }
  impl_->file.read_at(impl_->data_begin + impl_->header.begins[place] + offset.count(), into);
}

}  // namespace hydra
