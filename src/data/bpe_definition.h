#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hydra/data/bpe_tokenizer.h"

namespace hydra::detail {

struct BpeMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

struct SpecialToken {
  std::string content;
  std::int32_t id;
};

/// What any of the file formats says, checked: every id below `tokens.size()`, every byte a token.
struct BpeDefinition {
  std::vector<std::optional<std::string>> tokens;  ///< bytes by id; some ids may have none
  std::vector<BpeMerge> merges;                    ///< first come, first merged
  std::array<std::int32_t, 256> byte_tokens;
  std::vector<SpecialToken> specials;
  bool add_prefix_space = false;  ///< a stretch of text that has no space in front gets one
};

/// Read and check the formats; errors are those of BpeTokenizer's functions of like names.
BpeDefinition read_bpe_folder(const std::string& folder, const BpeOptions& options);
BpeDefinition read_bpe_files(const std::string& vocabulary, const std::string& merges,
                             const BpeOptions& options);
BpeDefinition read_tokenizer_json(const std::string& path);

}  // namespace hydra::detail
