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

namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF"sv;

/// What files that are no text begin with.
struct KnownStart {
  std::string_view bytes;
  const char* what;
};
constexpr KnownStart kKnownStarts[] = {
    {"version https://git-lfs.github.com/spec/"sv,
     "is a pointer of Git LFS, not the text itself: fetch it with \"git lfs pull\""},
    {"\xFF\xFE\x00\x00"sv, "is UTF-32: convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"},
    {"\x00\x00\xFE\xFF"sv, "is UTF-32: convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"},
    {"\xFF\xFE"sv, "is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"},
    {"\xFE\xFF"sv, "is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"},
    {"\x1F\x8B"sv, "is compressed by gzip: unpack it (gunzip)"},
    {"\x28\xB5\x2F\xFD"sv, "is compressed by zstd: unpack it (unzstd)"},
    {"BZh"sv, "is compressed by bzip2: unpack it (bunzip2)"},
    {"\xFD"
     "7zXZ"sv,
     "is compressed by xz: unpack it (unxz)"},
    {"PK\x03\x04"sv, "is a zip archive (or an office document): unpack or export it as text"},
    {"%PDF-"sv, "is a PDF document: export it as text (pdftotext)"},
    {"PAR1"sv, "is a Parquet file: export its text column"},
};

void require_text(const std::string& path, std::string_view content) {
  constexpr const char* kInsist = ", or ask for bytes as they are (text encoding \"bytes\")";
  for (const KnownStart& start : kKnownStarts) {
    if (content.starts_with(start.bytes)) throw DataError(path + " " + start.what + kInsist);
  }
  const std::size_t zero = content.find('\0');
  if (zero == std::string_view::npos) return;
  throw DataError(path + " has a byte of 0 at offset " + std::to_string(zero) +
                  ", which text has not: it is a binary file, or UTF-16 without a mark. Convert it "
                  "to UTF-8" +
                  kInsist);
}

std::string read_whole(const std::string& path) {
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
  return content;
}

}  // namespace

TextEncoding parse_text_encoding(std::string_view name) {
  if (name == "utf-8") return TextEncoding::kUtf8;
  if (name == "bytes") return TextEncoding::kBytes;
  throw InvalidArgument("there is no text encoding \"" + std::string(name) +
                        "\": choose utf-8 or bytes");
}

TextFile read_text(const std::string& path, TextEncoding encoding) {
  TextFile file{read_whole(path), false};
  if (encoding == TextEncoding::kBytes) return file;
  require_text(path, file.text);
  if (!file.text.starts_with(kUtf8Mark)) return file;
  file.text.erase(0, kUtf8Mark.size());
  file.had_byte_order_mark = true;
  if (file.text.empty()) {
    throw DataError("the text file " + path + " holds a byte order mark and nothing else");
  }
  return file;
}

std::vector<std::int32_t> read_tokens(const std::string& path, const Tokenizer& tokenizer,
                                      TextEncoding encoding) {
  return tokenizer.encode(read_text(path, encoding).text);
}

}  // namespace hydra
