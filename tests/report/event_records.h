#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "report/event_record.h"

namespace hydra {

/// The records of an event file by their lengths; whatever is not one is a failure.
inline std::vector<std::string> records(const std::string& bytes) {
  std::vector<std::string> found;
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::uint64_t length = 0;
    if (bytes.size() - at < 16) break;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    if (length > bytes.size() - at - 16) break;
    found.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(bytes.substr(at, length + 16), framed(found.back()));
    at += length + 16;
  }
  EXPECT_EQ(at, bytes.size()) << "bytes that are no record follow";
  return found;
}

}  // namespace hydra
