#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hydra/data/tokenizer.h"

namespace hydra {

struct BpeOptions {
  /// Vocabulary entries that are special in files which do not say so themselves (vocab.json,
  /// encoder.json). Default: "<|endoftext|>" where the vocabulary has it. Each must be an entry.
  std::optional<std::vector<std::string>> special_tokens{};
  /// True, as Hugging Face's tokenizers do: a special token's spelling in a text gives its id.
  /// False: text that spells one is ordinary text, for documents from strangers.
  bool specials_in_text = true;
};

/// GPT-2's byte-level byte-pair encoding: the ids that Hugging Face's `tokenizers` gives.
///
/// A text is cut at special tokens (leftmost, longest first), then into pieces by GPT-2's rule
/// (Unicode 16 categories), and within each piece the pair of neighbours whose merge comes first
/// in the list is merged, leftmost first, until none is left.
///
/// Any bytes can be encoded, and `decode(encode(bytes))` gives the same bytes (with a space in
/// front where a tokenizer.json sets add_prefix_space; GPT-2's does not). Bytes that are not UTF-8
/// are symbols to the splitting rule, which is how it sees the U+FFFD of a lossy decoding; they
/// keep their own ids. Whoever wants the ids of lossily decoded text replaces them first.
///
/// Source: Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units,
/// ACL 2016, section 3.2; Radford et al., Language Models are Unsupervised Multitask Learners,
/// 2019, section 2.2. A heap of candidate merges makes a piece of n bytes cost O(n log n) in place
/// of the published O(n^2), and a bounded cache remembers short pieces.
///
/// Thread safety: immutable; every member may be called from several threads at once.
/// Lifetime: move-only; a tokenizer that was moved from may only be destroyed or assigned to.
class BpeTokenizer final : public Tokenizer {
 public:
  /// Reads tokenizer.json, else vocab.json and merges.txt (with added_tokens.json where it is
  /// there), else encoder.json and vocab.bpe, from a folder as hubs hold it.
  /// Errors: DataError when none of them is there, and those of the following two.
  static BpeTokenizer from_folder(const std::string& folder, const BpeOptions& options = {});

  /// Reads a vocabulary (a JSON object: token to id) and a list of merges (one pair a line).
  /// Errors: DataError names the file, and the key or line, of what is malformed, missing (each of
  /// the 256 bytes needs a token), given twice, or beyond the vocabulary. InvalidArgument names a
  /// special token that is no entry.
  static BpeTokenizer from_files(const std::string& vocabulary, const std::string& merges,
                                 const BpeOptions& options = {});

  /// Reads a tokenizer.json; its own added tokens are the special ones. Truncation and padding
  /// that such a file may carry belong to a caller's batch and are not read.
  /// Errors: as from_files; Unsupported names the key of a setting that would give other ids
  /// (another model, a normalizer, another splitting rule, tokens put around a text, ...).
  static BpeTokenizer from_tokenizer_json(const std::string& path, const BpeOptions& options = {});

  BpeTokenizer(BpeTokenizer&&) noexcept;
  BpeTokenizer& operator=(BpeTokenizer&&) noexcept;
  ~BpeTokenizer() override;

  /// Returns the highest id plus one.
  std::int64_t vocabulary_size() const noexcept override;

  std::vector<std::int32_t> encode(std::string_view text) const override;

  /// Encodes documents on `threads` threads (at least 1); results are in the documents' order and
  /// do not depend on the number of threads.
  /// Errors: InvalidArgument for no threads. Blocks: until all are done.
  std::vector<std::vector<std::int32_t>> encode_documents(
      std::span<const std::string_view> documents, int threads) const;

  /// Returns the bytes of any tokens in any order, special ones by their spelling. They need not
  /// be UTF-8: a character may be spread over several tokens.
  /// Errors: InvalidArgument names an id without a token, and its place.
  std::string decode(const std::vector<std::int32_t>& tokens) const override;

  /// Returns the id of a special token, such as "<|endoftext|>".
  std::optional<std::int32_t> special_token(std::string_view content) const;

 private:
  struct Impl;
  explicit BpeTokenizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
