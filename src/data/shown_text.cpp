#include "data/shown_text.h"

#include <cstdio>

#include "data/unicode_class.h"

namespace hydra {

std::string printable(std::string_view text, std::size_t most) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = detail::character_at(text, at).bytes;
    if (at + bytes > most) return shown + "...";
    const auto first = static_cast<unsigned char>(text[at]);
    if (bytes == 1 && (first < 0x20 || first >= 0x7F)) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02X", first);
      shown += escape;
    } else {
      shown += text.substr(at, bytes);
    }
    at += bytes;
  }
  return shown;
}

}  // namespace hydra
