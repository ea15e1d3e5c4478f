// A LibTorch of another version, as far as its own description goes: the definition here takes the
// place of libtorch_cpu's.

#include "runtime/torch_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <string>

#include "hydra/core/error.h"
#include "hydra/runtime/runtime.h"

namespace {
std::string g_description;  // NOLINT: what at::show_config returns
}

namespace at {
std::string show_config();
std::string show_config() { return g_description; }
}  // namespace at

namespace hydra {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void make_runtime() {
  Runtime runtime(
      {.devices = {{.name = "cpu0", .memory = Bytes(1 << 20)}}, .host_memory = Bytes(1 << 20)});
}

TEST(TorchVersion, IsReadFromAmongTheBuildSettings) {
  EXPECT_EQ(torch_version_in("- Build settings: A=1, TORCH_VERSION=2.11.0, USE_MKL=ON, \n"),
            "2.11.0");
  EXPECT_EQ(torch_version_in("- Build settings: TORCH_VERSION=2.11.0"), "2.11.0");
  EXPECT_EQ(torch_version_in("- Build settings: TORCH_VERSION=2.11.0a0+git70d99e9, B=2"), "2.11.0");
}

TEST(TorchVersion, IsNotTakenFromAnotherSetting) {
  EXPECT_EQ(torch_version_in("- Build settings: CUDNN_VERSION=9.19.0, MY_TORCH_VERSION=1.0, "), "");
  EXPECT_EQ(torch_version_in(""), "");
}

TEST(TorchVersion, OfAnotherLibraryRefusesARuntimeNamingBoth) {
  g_description = "- Build settings: TORCH_VERSION=1.13.1, ";
  try {
    make_runtime();
    FAIL() << "a runtime was made";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("built with LibTorch " TORCH_VERSION),
                                    HasSubstr("has loaded is 1.13.1")));
  }
}

TEST(TorchVersion, ThatNamesNoneOrTheOneOfTheBuildPasses) {
  g_description = "";
  make_runtime();
  g_description = "- Build settings: TORCH_VERSION=" TORCH_VERSION ", ";
  make_runtime();
}

}  // namespace
}  // namespace hydra
