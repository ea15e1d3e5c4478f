#include "hydra/core/output_path.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hydra/core/error.h"

namespace hydra {
namespace {

namespace fs = std::filesystem;

class OutputPathTest : public ::testing::Test {
 protected:
  OutputPathTest() {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("hydra_output_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~OutputPathTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string make(const std::string& name) const {
    std::ofstream(path(name)) << "x";
    return path(name);
  }
  std::string refusal(const std::string& path) const {
    try {
      resolve_output(path);
    } catch (const SystemError& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_;
};

TEST_F(OutputPathTest, ANewAndARegularFileAreReplaceable) {
  EXPECT_TRUE(resolve_output(path("new")).replaceable);
  EXPECT_TRUE(resolve_output(make("old")).replaceable);
  EXPECT_EQ(resolve_output(path("old")).target, path("old"));
}

TEST_F(OutputPathTest, LinksAreFollowedAlsoToWhatIsNotThereYet) {
  fs::create_directory(path("sub"));
  make("sub/file");
  fs::create_symlink("sub/file", path("one"));
  fs::create_symlink("one", path("two"));
  fs::create_symlink("sub/missing", path("dangling"));
  EXPECT_TRUE(fs::equivalent(resolve_output(path("two")).target, path("sub/file")));
  EXPECT_EQ(fs::path(resolve_output(path("dangling")).target).filename(), "missing");
  EXPECT_TRUE(resolve_output(path("dangling")).replaceable);
}

TEST_F(OutputPathTest, DevicesPipesAndDescriptorsAreWrittenThrough) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0666), 0);
  fs::create_symlink("pipe", path("link"));
  for (const std::string& each :
       {std::string("/dev/null"), path("pipe"), path("link"), std::string("/proc/self/fd/1")}) {
    EXPECT_FALSE(resolve_output(each).replaceable) << each;
  }
  for (const char* each : {"/dev/stdout", "/dev/fd/1"}) {
    EXPECT_TRUE(!fs::exists(each) || !resolve_output(each).replaceable) << each;
  }
}

TEST_F(OutputPathTest, WhatCannotBeWrittenIsRefusedByNameAndCause) {
  EXPECT_NE(refusal(path("no/such/dir/s.json")).find("no/such/dir cannot be used: No such file"),
            std::string::npos);
  EXPECT_NE(refusal(folder_.string()).find("directory"), std::string::npos);
  fs::create_symlink("b", path("a"));
  fs::create_symlink("a", path("b"));
  EXPECT_NE(refusal(path("a")).find("circle"), std::string::npos);
  EXPECT_NE(refusal(make("file") + "/below").find("Not a directory"), std::string::npos);
  EXPECT_THROW(resolve_output(""), InvalidArgument);
}

TEST_F(OutputPathTest, FilesAreComparedAsFilesNotAsSpellings) {
  make("file");
  fs::create_directory(path("sub"));
  fs::create_symlink("file", path("link"));
  fs::create_hard_link(path("file"), path("hard"));
  EXPECT_TRUE(name_one_file(path("file"), path("sub/../file")));
  EXPECT_TRUE(name_one_file(path("file"), path("link")));
  EXPECT_TRUE(name_one_file(path("file"), path("hard")));
  EXPECT_FALSE(name_one_file(path("file"), make("other")));
  EXPECT_TRUE(name_one_file(path("new"), path("./new")));
  EXPECT_TRUE(name_one_file(path("new"), path("sub/../new")));
  EXPECT_FALSE(name_one_file(path("new"), path("sub/new")));
  EXPECT_FALSE(name_one_file("/dev/null", "/dev/null"));
  EXPECT_FALSE(name_one_file(path("no/such/a"), path("no/such/a")));
}

}  // namespace
}  // namespace hydra
