#include "hydra/data/bpe_tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "data/bpe_definition.h"
#include "data/bpe_merger.h"
#include "data/gpt2_splitter.h"
#include "data/piece_cache.h"
#include "data/special_finder.h"
#include "hydra/core/error.h"

namespace hydra {

using detail::BpeDefinition;
using detail::BpeMerger;
using detail::PieceCache;

struct BpeTokenizer::Impl {
  Impl(BpeDefinition source, const BpeOptions& options)
      : definition(std::move(source)),
        specials_in_text(options.specials_in_text),
        merger(definition.merges, definition.byte_tokens) {}

  BpeDefinition definition;
  bool specials_in_text;
  BpeMerger merger;
  detail::PieceCachePool caches;
};

namespace {

/// Encodes on one thread, with a cache that it has borrowed.
class Encoder {
 public:
  Encoder(const BpeDefinition& definition, const BpeMerger& merger, detail::PieceCachePool& caches)
      : definition_(definition), merger_(merger), caches_(caches), cache_(caches.take()) {}
  ~Encoder() { caches_.give_back(std::move(cache_)); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  std::vector<std::int32_t> encode(std::string_view text, bool specials_in_text) {
    std::vector<std::int32_t> tokens;
    tokens.reserve(text.size() / 4);  // about GPT-2's rate on English
    if (specials_in_text) {
      encode_with_specials(text, tokens);
    } else {
      encode_stretch(text, tokens);
    }
    return tokens;
  }

 private:
  void encode_with_specials(std::string_view text, std::vector<std::int32_t>& tokens) {
    detail::SpecialFinder specials(definition_.specials, text);
    std::size_t at = 0;
    while (const auto special = specials.next(at)) {
      encode_stretch(text.substr(at, special->begin - at), tokens);
      tokens.push_back(special->token->id);
      at = special->begin + special->token->content.size();
    }
    encode_stretch(text.substr(at), tokens);
  }

  void encode_stretch(std::string_view text, std::vector<std::int32_t>& tokens) {
    if (text.empty()) return;
    if (definition_.add_prefix_space && text.front() != ' ') {
      encode_pieces(" " + std::string(text), tokens);
    } else {
      encode_pieces(text, tokens);
    }
  }

  void encode_pieces(std::string_view text, std::vector<std::int32_t>& tokens) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = detail::piece_end(text, at);
      encode_piece(text.substr(at, end - at), tokens);
      at = end;
    }
  }

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& tokens) {
    if (piece.size() > PieceCache::kLargestPiece) {
      merger_.encode(piece, scratch_, tokens);
      return;
    }
    PieceCache::Entry& entry = cache_->place_of(piece);
    if (entry.holds(piece)) {
      tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.begin() + entry.count);
      return;
    }
    const std::size_t before = tokens.size();
    merger_.encode(piece, scratch_, tokens);
    entry.remember(piece, std::span(tokens).subspan(before));
  }

  const BpeDefinition& definition_;
  const BpeMerger& merger_;
  detail::PieceCachePool& caches_;
  std::unique_ptr<PieceCache> cache_;
  BpeMerger::Scratch scratch_;
};

/// The first error of several threads.
class FirstError {
 public:
  void keep(std::exception_ptr error) {
    const MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() {
    const MutexLock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  Mutex mutex_;
  std::exception_ptr error_ HYDRA_GUARDED_BY(mutex_);
};

}  // namespace

BpeTokenizer::BpeTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BpeTokenizer::BpeTokenizer(BpeTokenizer&&) noexcept = default;
BpeTokenizer& BpeTokenizer::operator=(BpeTokenizer&&) noexcept = default;
BpeTokenizer::~BpeTokenizer() = default;

BpeTokenizer BpeTokenizer::from_folder(const std::string& folder, const BpeOptions& options) {
  return BpeTokenizer(std::make_unique<Impl>(detail::read_bpe_folder(folder, options), options));
}

BpeTokenizer BpeTokenizer::from_files(const std::string& vocabulary, const std::string& merges,
                                      const BpeOptions& options) {
  return BpeTokenizer(
      std::make_unique<Impl>(detail::read_bpe_files(vocabulary, merges, options), options));
}

BpeTokenizer BpeTokenizer::from_tokenizer_json(const std::string& path, const BpeOptions& options) {
  return BpeTokenizer(std::make_unique<Impl>(detail::read_tokenizer_json(path), options));
}

std::int64_t BpeTokenizer::vocabulary_size() const noexcept {
  return static_cast<std::int64_t>(impl_->definition.tokens.size());
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) const {
  return Encoder(impl_->definition, impl_->merger, impl_->caches)
      .encode(text, impl_->specials_in_text);
}

std::vector<std::vector<std::int32_t>> BpeTokenizer::encode_documents(
    std::span<const std::string_view> documents, int threads) const {
  if (threads < 1) {
    throw InvalidArgument("encode_documents needs at least 1 thread, not " +
                          std::to_string(threads));
  }
  std::vector<std::vector<std::int32_t>> results(documents.size());
  std::atomic<std::size_t> next{0};
  FirstError error;
  const auto work = [&] {
    try {
      Encoder encoder(impl_->definition, impl_->merger, impl_->caches);
      for (std::size_t i = next++; i < documents.size(); i = next++) {
        results[i] = encoder.encode(documents[i], impl_->specials_in_text);
      }
    } catch (...) {
      error.keep(std::current_exception());
      next = documents.size();
    }
  };
  {
    std::vector<std::jthread> others;
    const auto wanted = std::min<std::size_t>(static_cast<std::size_t>(threads), documents.size());
    for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(work);
    work();
  }
  error.rethrow();
  return results;
}

std::string BpeTokenizer::decode(const std::vector<std::int32_t>& tokens) const {
  const auto& known = impl_->definition.tokens;
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<std::size_t>(tokens[i]);
    if (tokens[i] < 0 || id >= known.size() || !known[id]) {
      throw InvalidArgument("token " + std::to_string(tokens[i]) + " at place " +
                            std::to_string(i) + " is none of this vocabulary of " +
                            std::to_string(known.size()));
    }
    text += *known[id];
  }
  return text;
}

std::optional<std::int32_t> BpeTokenizer::special_token(std::string_view content) const {
  for (const auto& special : impl_->definition.specials) {
    if (special.content == content) return special.id;
  }
  return std::nullopt;
}

}  // namespace hydra
