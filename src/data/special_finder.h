#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/bpe_definition.h"

namespace hydra::detail {

/// Walks over the special tokens that a text spells, from left to right; of those that begin at one
/// place the longest counts. Each token's next place is kept until it is passed, so that a text is
/// read once per token, not once per find.
/// Lifetime: borrows the tokens and the text.
class SpecialFinder {
 public:
  struct Found {
    std::size_t begin;
    const SpecialToken* token;
  };

  SpecialFinder(std::span<const SpecialToken> tokens, std::string_view text)
      : tokens_(tokens), text_(text), next_(tokens.size(), 0) {
    for (std::size_t i = 0; i < tokens_.size(); ++i) next_[i] = text_.find(tokens_[i].content);
  }

  /// Returns the first that begins at `from` or later; `from` never falls.
  std::optional<Found> next(std::size_t from) {
    std::optional<Found> first;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const SpecialToken& token = tokens_[i];
      if (next_[i] < from) next_[i] = text_.find(token.content, from);
      if (next_[i] == text_.npos) continue;
      const bool better =
          !first || next_[i] < first->begin ||
          (next_[i] == first->begin && token.content.size() > first->token->content.size());
      if (better) first = Found{next_[i], &token};
    }
    return first;
  }

 private:
  std::span<const SpecialToken> tokens_;
  std::string_view text_;
  std::vector<std::size_t> next_;
};

}  // namespace hydra::detail
