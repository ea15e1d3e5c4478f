#include "hydra/core/bytes.h"

#include <gtest/gtest.h>

#include "hydra/core/error.h"

namespace hydra {
namespace {

using namespace hydra::literals;

TEST(BytesTest, ParsesBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096_B);
  EXPECT_EQ(parse_bytes("64MiB"), 64_MiB);
  EXPECT_EQ(parse_bytes("1.5 gib"), 1536_MiB);
  EXPECT_EQ(parse_bytes("2GB"), Bytes(2000000000));
  EXPECT_EQ(parse_bytes("3k"), 3_KiB);
}

TEST(BytesTest, RefusesWhatIsNoNumberOfBytes) {
  for (const char* text : {"", "MiB", "-1", "12 parsecs", "nan", "1e300", "5MiB7"}) {
    EXPECT_THROW(parse_bytes(text), InvalidArgument) << text;
  }
}

TEST(BytesTest, WritesTheLargestFittingUnit) {
  EXPECT_EQ(to_string(512_B), "512 B");
  EXPECT_EQ(to_string(1536_MiB), "1.50 GiB");
  EXPECT_EQ(to_string(64_KiB), "64.00 KiB");
}

TEST(BytesTest, RoundsUpToAnAlignment) {
  EXPECT_EQ((1_B).rounded_up(64), 64_B);
  EXPECT_EQ((64_B).rounded_up(64), 64_B);
  EXPECT_EQ((0_B).rounded_up(64), 0_B);
}

TEST(ErrorTest, OutOfDeviceMemoryNamesTheDeviceTheNumbersAndTheWayOut) {
  const OutOfDeviceMemory error("cpu0", 3_MiB, 14_MiB, 16_MiB);
  const std::string message = error.what();
  for (const char* part : {"cpu0", "3.00 MiB", "14.00 MiB", "16.00 MiB", "micro-batch"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part;
  }
  EXPECT_TRUE(error.retryable());
}

}  // namespace
}  // namespace hydra
