#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hydra {

/// Turns text to token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::int64_t vocabulary_size() const noexcept = 0;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<std::int32_t>& tokens) const = 0;
};

}  // namespace hydra
