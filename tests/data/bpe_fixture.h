#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace hydra {

/// The small vocabulary that Hugging Face's tokenizers trained, and the ids that it gave
/// (tests/python/compare_tokenizer.py --write-golden), in every layout of files that is read.
class BpeFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) /
        ("bpe_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::filesystem::path golden(const char* name) {
    return std::filesystem::path(HYDRA_GOLDEN_FOLDER) / name;
  }

  static nlohmann::json golden_json(const char* name) {
    std::ifstream file(golden(name));
    return nlohmann::json::parse(file);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  static std::string merges_text(const nlohmann::json& tokenizer) {
    std::string text = "#version: 0.2\n";
    for (const auto& merge : tokenizer["model"]["merges"]) {
      text += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
    }
    return text;
  }

  std::filesystem::path folder_;
};

}  // namespace hydra
