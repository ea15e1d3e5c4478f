#include "report/text_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "hydra/core/error.h"

namespace hydra {

void write_text_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".part";
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.flush();
    if (!file) throw SystemError("cannot write " + path + ": " + system_message(errno));
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw SystemError("cannot write " + path + ": " + error.message());
  }
}

}  // namespace hydra
