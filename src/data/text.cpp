#include "hydra/data/text.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

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
  if (status.type() == std::filesystem::file_type::not_found) {
    throw DataError("the text file " + path + " does not exist");
  }
  if (!std::filesystem::status_known(status)) {
    throw DataError("the text file " + path + " cannot be read: " + error.message());
  }
  if (std::filesystem::is_directory(status)) {
    throw DataError(path + " is a directory, a text file is needed");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw DataError(path + " is not a regular file, a text file is needed");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError("the text file " + path + " cannot be read: " + system_message(errno));
  // Not by `<< file.rdbuf()`, which takes a failed read for the end of the file.
  std::string content;
  std::vector<char> block(1 << 20);
  do {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    content.append(block.data(), static_cast<std::size_t>(file.gcount()));
  } while (file);
  if (file.bad()) {
    throw DataError("reading the text file " + path + " failed: " + system_message(errno));
  }
  if (content.empty()) throw DataError("the text file " + path + " is empty");
  return tokenizer.encode(content);
}

}  // namespace hydra
