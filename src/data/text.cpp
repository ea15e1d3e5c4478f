#include "hydra/data/text.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "hydra/core/error.h"

namespace hydra {

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token > 255) {
      throw InvalidArgument("token " + std::to_string(token) + " is no byte");
    }
    text += static_cast<char>(static_cast<unsigned char>(token));
  }
  return text;
}

std::vector<std::int32_t> read_tokens(const std::string& path, const Tokenizer& tokenizer) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw DataError("the text file " + path + " does not exist");
  }
  if (std::filesystem::is_directory(status)) {
    throw DataError(path + " is a directory, a text file is needed");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError("the text file " + path + " cannot be read: " + std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) {
    throw DataError("reading the text file " + path + " failed: " + std::strerror(errno));
  }
  const std::string content = std::move(text).str();
  if (content.empty()) throw DataError("the text file " + path + " is empty");
  return tokenizer.encode(content);
}

}  // namespace hydra
