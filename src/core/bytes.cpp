#include "hydra/core/bytes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "hydra/core/error.h"

namespace hydra {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 13> kUnits{{
    {"", 1},
    {"b", 1},
    {"k", 1024.0},
    {"kb", 1e3},
    {"mb", 1e6},
    {"gb", 1e9},
    {"tb", 1e12},
    {"kib", 1024.0},
    {"mib", 1048576.0},
    {"gib", 1073741824.0},
    {"tib", 1099511627776.0},
    {"m", 1048576.0},
    {"g", 1073741824.0},
}};

[[noreturn]] void refuse(std::string_view text) {
  throw InvalidArgument("\"" + std::string(text) +
                        "\" is no number of bytes: write for example 64MiB, 1.5GiB or 4096");
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  long double number = 0;  // holds every whole number up to the largest that is accepted
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) refuse(text);
  std::string unit;
  for (const char* c = std::find_if(rest, end, [](char at) { return at != ' '; }); c != end; ++c) {
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  const auto found = std::find_if(kUnits.begin(), kUnits.end(),
                                  [&](const auto& entry) { return entry.first == unit; });
  if (found == kUnits.end()) refuse(text);
  const long double bytes = std::round(number * found->second);
  if (bytes > 0x1p62L) refuse(text);
  return Bytes(static_cast<std::int64_t>(bytes));
}

std::string to_string(Bytes bytes) {
  constexpr std::array<const char*, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes.count());
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  if (unit == 0) {
    std::snprintf(text.data(), text.size(), "%lld B", static_cast<long long>(bytes.count()));
  } else {
    std::snprintf(text.data(), text.size(), "%.2f %s", value, kNames[unit]);
  }
  return text.data();
}

}  // namespace hydra
