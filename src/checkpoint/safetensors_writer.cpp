#include "checkpoint/atomic_file.h"
#include "checkpoint/safetensors_header.h"
#include "data/shown_text.h"
#include "hydra/checkpoint/safetensors.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

std::int64_t data_bytes(const detail::SafetensorsHeader& header) {
  if (header.tensors.empty()) return 0;
  return header.begins.back() + bytes_of(header.tensors.back()).count();
}

}  // namespace

struct SafetensorsWriter::Impl {
  Impl(const std::string& path, detail::SafetensorsHeader laid_out, const std::string& text)
      : header(std::move(laid_out)),
        names(header.tensors),
        written(header.tensors.size()),
        data_begin(static_cast<std::int64_t>(text.size())),
        file(path, data_begin + data_bytes(header)) {
    file.write_at(0, std::as_bytes(std::span(text)));
  }

  detail::SafetensorsHeader header;
  detail::TensorNames names;
  std::vector<Bytes> written;  ///< of each tensor
  std::int64_t data_begin;
  detail::AtomicFile file;
  bool committed = false;
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                                     const TensorMetadata& metadata) {
  detail::SafetensorsHeader header = detail::lay_out(std::move(tensors), metadata);
  const std::string text = detail::header_text(header);
  impl_ = std::make_unique<Impl>(path, std::move(header), text);
}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const std::size_t place = impl_->names.find(name);
  if (place == detail::TensorNames::kNone) {
    throw InvalidArgument(impl_->file.path() + " was opened without a tensor " + in_quotes(name));
  }
  const Bytes size = bytes_of(impl_->header.tensors[place]);
  Bytes& written = impl_->written[place];
  if (bytes.size() > (size - written).size()) {
    throw InvalidArgument("tensor " + in_quotes(name) + " has " + std::to_string(size.count()) +
                          " bytes, " + std::to_string(written.count()) + " are written and " +
                          std::to_string(bytes.size()) + " more are too many");
  }
  impl_->file.write_at(impl_->data_begin + impl_->header.begins[place] + written.count(), bytes);
  written += Bytes(static_cast<std::int64_t>(bytes.size()));
}

void SafetensorsWriter::commit() {
  if (impl_->committed) throw InvalidArgument(impl_->file.path() + " is committed already");
  for (std::size_t i = 0; i < impl_->written.size(); ++i) {
    const TensorSpec& tensor = impl_->header.tensors[i];
    if (impl_->written[i] != bytes_of(tensor)) {
      throw InvalidArgument(impl_->file.path() + ": tensor " + in_quotes(tensor.name) + " has " +
                            std::to_string(impl_->written[i].count()) + " of its " +
                            std::to_string(bytes_of(tensor).count()) + " bytes");
    }
  }
  impl_->file.commit();
  impl_->committed = true;
}

}  // namespace hydra
