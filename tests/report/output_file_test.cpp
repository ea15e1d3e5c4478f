#include "hydra/report/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <future>

#include "hydra/core/error.h"
#include "temporary_folder.h"

namespace hydra {
namespace {

namespace fs = std::filesystem;

std::size_t files_in(const std::string& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(OutputFileTest, CheckingLeavesNothingAndWritingLeavesTheFileAlone) {
  const TemporaryFolder folder;
  const OutputFile file(folder.path("out"));
  EXPECT_EQ(files_in(folder.path()), 0U);
  file.write("one");
  file.write("two");
  EXPECT_EQ(contents(folder.path("out")), "two");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(OutputFileTest, CheckingChangesNothingOfWhatIsThere) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("out")) << "before";
  const OutputFile file(folder.path("out"));
  EXPECT_EQ(contents(folder.path("out")), "before");
}

TEST(OutputFileTest, ALinkStaysAndTheFileAtItsEndIsReplacedWithItsPermissions) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("target")) << "before";
  ASSERT_EQ(chmod(folder.path("target").c_str(), 0640), 0);
  fs::create_symlink("target", folder.path("link"));
  OutputFile(folder.path("link")).write("after");
  EXPECT_TRUE(fs::is_symlink(folder.path("link")));
  EXPECT_EQ(contents(folder.path("target")), "after");
  struct stat state {};
  ASSERT_EQ(stat(folder.path("target").c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 0777U, 0640U);
}

TEST(OutputFileTest, ADeviceNodeIsWrittenThroughAndStaysOne) {
  const TemporaryFolder folder;
  const std::string node = folder.path("null");
  if (mknod(node.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) {
    GTEST_SKIP() << "device nodes cannot be made here";
  }
  struct stat before {};
  stat(node.c_str(), &before);
  if (access(node.c_str(), W_OK) != 0) GTEST_SKIP() << "device nodes cannot be used here";
  OutputFile(node).write("text");
  struct stat after {};
  ASSERT_EQ(stat(node.c_str(), &after), 0);
  EXPECT_TRUE(S_ISCHR(after.st_mode));
  EXPECT_EQ(before.st_ino, after.st_ino);
}

TEST(OutputFileTest, APipesReaderGetsTheText) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0666), 0);
  const OutputFile file(folder.path("pipe"));  // does not wait for a reader
  auto read = std::async(std::launch::async, [&] { return contents(folder.path("pipe")); });
  file.write("through");
  EXPECT_EQ(read.get(), "through");
  EXPECT_TRUE(fs::is_fifo(folder.path("pipe")));
}

TEST(OutputFileTest, AFullDeviceIsToldWithPathAndCause) {
  try {
    OutputFile("/dev/full").write("text");
    FAIL() << "was written";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("/dev/full: No space left"), std::string::npos);
  }
}

TEST(OutputFileTest, AFolderThatIsNotThereIsFoundBeforehand) {
  const TemporaryFolder folder;
  EXPECT_THROW(OutputFile(folder.path("no/such/out")), SystemError);
}

TEST(OutputFileTest, AFailedWriteKeepsWhatWasThere) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("out")) << "before";
  const OutputFile file(folder.path("out"));
  {
    const FileSizeLimit full(4);
    EXPECT_THROW(file.write("too long for the limit"), SystemError);
  }
  EXPECT_EQ(contents(folder.path("out")), "before");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

}  // namespace
}  // namespace hydra
