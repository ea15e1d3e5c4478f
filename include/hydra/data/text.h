#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hydra/data/data_source.h"
#include "hydra/data/tokenizer.h"

namespace hydra {

/// One token per byte: vocabulary 256, any bytes go in and come out unchanged.
class ByteTokenizer final : public Tokenizer {
 public:
  std::int64_t vocabulary_size() const noexcept override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<std::int32_t>& tokens) const override;
};

/// How much a text file is trusted to be one.
enum class TextEncoding {
  kUtf8,   ///< text: a byte order mark is skipped, what is known to be none is refused
  kBytes,  ///< any bytes, as they are
};

/// Reads "utf-8" or "bytes". Errors: InvalidArgument lists the names.
TextEncoding parse_text_encoding(std::string_view name);

struct TextFile {
  std::string text;
  bool had_byte_order_mark = false;  ///< EF BB BF, which is not part of `text`
};

/// Reads a text file whole.
/// Errors: DataError names the path and what is wrong: missing, not a regular file, unreadable or
/// empty; with kUtf8 also a pointer of Git LFS in place of the text, UTF-16 or UTF-32, an archive
/// or document of a known kind, and any file with a byte of 0. Other bytes that are not UTF-8 are
/// kept.
TextFile read_text(const std::string& path, TextEncoding encoding = TextEncoding::kUtf8);

/// Reads a text file and encodes it. Errors: as `read_text`.
std::vector<std::int32_t> read_tokens(const std::string& path, const Tokenizer& tokenizer,
                                      TextEncoding encoding = TextEncoding::kUtf8);

struct PackedWindowsOptions {
  std::int64_t batch_size = 4;  ///< windows per mini-batch
  std::int64_t context = 128;   ///< tokens per window
  std::uint64_t seed = 0;       ///< of the shuffling
  bool shuffle = true;
};

/// Next-token batches over packed, non-overlapping windows of one token sequence, reshuffled in
/// each epoch by a permutation that is a function of (seed, epoch).
///
/// Shape: inputs[0] and side "targets" are int64 [batch_size, context], targets shifted by one;
/// loss_denominator = batch_size * context. Windows run on over the epoch's end.
/// Errors: InvalidArgument for a batch_size or context below 1, or a product beyond 2^31; DataError
/// when the tokens do not fill one window (context + 1 tokens), with both numbers. Thread safety:
/// thread-safe.
class PackedWindows final : public DataSource {
 public:
  PackedWindows(std::shared_ptr<const std::vector<std::int32_t>> tokens,
                PackedWindowsOptions options);
  ~PackedWindows() override;

  /// Errors: InvalidArgument for a negative step.
  Batch batch(std::int64_t step) override;
  std::int64_t windows() const noexcept;
  /// Returns how many tokens at the end fill no window; never trained on.
  std::int64_t unused_tokens() const noexcept;
  /// Returns how often windows have been shuffled: once per epoch unless jobs that share the source
  /// are more than 8 epochs apart.
  std::int64_t shuffles() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
