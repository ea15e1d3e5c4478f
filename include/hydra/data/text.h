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

/// Reads a text file and encodes it.
/// Errors: DataError names the path and what is wrong: missing, not a regular file, unreadable, or
/// empty. Bytes that are not UTF-8 are kept as they are by the byte tokenizer.
std::vector<std::int32_t> read_tokens(const std::string& path, const Tokenizer& tokenizer);

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
/// Errors: DataError when the tokens do not fill one window (context + 1 tokens), with both
/// numbers. Thread safety: thread-safe.
class PackedWindows final : public DataSource {
 public:
  PackedWindows(std::shared_ptr<const std::vector<std::int32_t>> tokens,
                PackedWindowsOptions options);
  ~PackedWindows() override;

  /// Errors: InvalidArgument for a negative step.
  Batch batch(std::int64_t step) override;
  std::int64_t windows() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
