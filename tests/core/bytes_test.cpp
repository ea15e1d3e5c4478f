#include "hydra/core/bytes.h"

#include <gtest/gtest.h>

#include "hydra/core/error.h"
#include "hydra/core/random.h"

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

TEST(BytesTest, ParsesUpToTwoToTheSixtyTwoExactly) {
  EXPECT_EQ(parse_bytes("4194304TiB"), Bytes(std::int64_t{1} << 62));
  EXPECT_THROW(parse_bytes("4194305TiB"), InvalidArgument);
  EXPECT_EQ(parse_bytes("9007199254740993"), Bytes(9007199254740993));  // no double holds it
  EXPECT_EQ(parse_bytes("0"), 0_B);
}

TEST(BytesTest, RefusesSpacesWithinANumberOrAUnit) {
  for (const char* text : {" 1", "1 2", "1 M iB", "MiB 1"}) {
    EXPECT_THROW(parse_bytes(text), InvalidArgument) << text;
  }
  EXPECT_EQ(parse_bytes("1  MiB"), 1_MiB);
}

TEST(BytesTest, TheRefusalQuotesTheText) {
  try {
    parse_bytes("12 parsecs");
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("\"12 parsecs\""), std::string::npos);
  }
}

TEST(BytesTest, WhatIsWrittenIsReadBackWithinItsDecimals) {
  SplitMix64 random(11);
  for (int round = 0; round < 1000; ++round) {
    const Bytes bytes(static_cast<std::int64_t>(random.next() >> (3 + random.below(60))));
    const double read = static_cast<double>(parse_bytes(to_string(bytes)).count());
    // Two decimals of a number that is at least 1: half a percent.
    EXPECT_NEAR(read, static_cast<double>(bytes.count()),
                0.005 * static_cast<double>(bytes.count()));
  }
}

TEST(BytesTest, NegativeDifferencesAreShownAsSuch) {
  EXPECT_EQ(to_string(1_KiB - 3_KiB), "-2.00 KiB");
  EXPECT_LT(1_KiB - 3_KiB, 0_B);
}

TEST(BytesTest, AddsAndMultiplies) {
  Bytes sum = 1_KiB;
  sum += 24_B;
  sum -= 48_B;
  EXPECT_EQ(sum, 1000_B);
  EXPECT_EQ(3 * sum, sum * 3);
  EXPECT_EQ((sum * 3).count(), 3000);
}

}  // namespace
}  // namespace hydra
