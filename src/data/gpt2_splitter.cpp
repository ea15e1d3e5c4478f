#include "data/gpt2_splitter.h"

#include "data/unicode_class.h"

namespace hydra::detail {
namespace {

/// Returns the bytes of the contraction that begins at an apostrophe, or 0.
std::size_t contraction_at(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at + 1, 2);
  if (rest.empty()) return 0;
  if (rest[0] == 's' || rest[0] == 't' || rest[0] == 'm' || rest[0] == 'd') return 2;
  return rest == "re" || rest == "ve" || rest == "ll" ? 3 : 0;
}

/// Returns the end of the run of characters of one class.
std::size_t run_end(std::string_view text, std::size_t at, CharacterClass kind) {
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (next.kind != kind) break;
    at += next.bytes;
  }
  return at;
}

/// White space up to the last character before something else, which may belong to what follows.
std::size_t space_end(std::string_view text, std::size_t begin) {
  std::size_t at = begin;
  std::size_t last = begin;
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (next.kind != CharacterClass::kSpace) return last > begin ? last : at;
    last = at;
    at += next.bytes;
  }
  return at;
}

}  // namespace

std::size_t piece_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    const std::size_t bytes = contraction_at(text, begin);
    if (bytes > 0) return begin + bytes;
  }
  const std::size_t start = begin + (text[begin] == ' ' ? 1 : 0);
  if (start < text.size()) {
    const Character first = character_at(text, start);
    if (first.kind != CharacterClass::kSpace) {
      return run_end(text, start + first.bytes, first.kind);
    }
  }
  return space_end(text, begin);
}

}  // namespace hydra::detail
