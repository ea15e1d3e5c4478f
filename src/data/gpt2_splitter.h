#pragma once

#include <cstddef>
#include <string_view>

namespace hydra::detail {

/// Returns where the piece that begins at `begin` (below the text's size) ends, by GPT-2's rule
///
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///
/// Bytes that are no UTF-8 count as [^\s\p{L}\p{N}], as the U+FFFD does that a lossy decoding puts
/// in their place. Linear in the piece.
/// Source: Radford, Wu, Child, Luan, Amodei and Sutskever, Language Models are Unsupervised
/// Multitask Learners, 2019, section 2.2, and its published encoder.py.
std::size_t piece_end(std::string_view text, std::size_t begin);

}  // namespace hydra::detail
