#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "hydra/checkpoint/tensor_format.h"

namespace hydra::detail {

struct StoredDtypeRow {
  std::string_view name;
  int bits;
};

/// In the order of StoredDtype.
inline constexpr std::array<StoredDtypeRow, 22> kStoredDtypes{{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

inline const StoredDtypeRow& row_of(StoredDtype dtype) {
  return kStoredDtypes.at(static_cast<std::size_t>(dtype));
}

inline std::optional<StoredDtype> stored_dtype_of(std::string_view name) {
  for (std::size_t i = 0; i < kStoredDtypes.size(); ++i) {
    if (kStoredDtypes[i].name == name) return static_cast<StoredDtype>(i);
  }
  return std::nullopt;
}

}  // namespace hydra::detail
