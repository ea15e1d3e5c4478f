#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "hydra/checkpoint/safetensors.h"

namespace hydra {

/// An empty folder per test, and safetensors files made by hand.
class CheckpointFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string(test->test_suite_name()) + "_" + test->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  std::string content(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::vector<std::string> names_in_folder() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

  /// A file with this header in front of this many bytes of data, 0, 1, 2 and so on.
  static std::string file_of(const std::string& header, std::size_t data_bytes) {
    std::string text;
    for (std::size_t i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> 8 * i & 0xFFU);
    text += header;
    for (std::size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i);
    return text;
  }

  static std::string entry(const std::string& name, const std::string& dtype,
                           const std::string& shape, const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  }

  std::filesystem::path folder_;
};

inline std::vector<std::byte> bytes_counting_from(std::size_t first, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

template <typename Reader>
std::vector<std::byte> read_all(const Reader& reader, const std::string& name) {
  std::vector<std::byte> bytes(bytes_of(*reader.find(name)).size());
  reader.read(name, Bytes(0), bytes);
  return bytes;
}

}  // namespace hydra
