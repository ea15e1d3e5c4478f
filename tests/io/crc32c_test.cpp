#include "hydra/io/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "hydra/core/random.h"

namespace hydra {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// RFC 3720, appendix B.4, and the check value of the polynomial's catalogue entry.
TEST(Crc32cTest, PublishedValues) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);
  const std::vector<std::byte> zeros(32, std::byte{0});
  const std::vector<std::byte> ones(32, std::byte{0xFF});
  std::vector<std::byte> rising;
  for (int i = 0; i < 32; ++i) rising.push_back(static_cast<std::byte>(i));
  EXPECT_EQ(crc32c(zeros), 0x8A9136AAU);
  EXPECT_EQ(crc32c(ones), 0x62A8AB43U);
  EXPECT_EQ(crc32c(rising), 0x46DD794EU);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32cTest, InstructionAndTableAgreeAtEveryLengthAndShift) {
  SplitMix64 random(1);
  std::vector<std::byte> data(300);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random.next());
  for (std::size_t shift = 0; shift < 9; ++shift) {
    for (std::size_t length = 0; length + shift <= data.size(); ++length) {
      const std::span<const std::byte> part(data.data() + shift, length);
      ASSERT_EQ(crc32c(part), crc32c_by_table(part)) << shift << " " << length;
    }
  }
}

TEST(Crc32cTest, PiecesContinue) {
  const auto all = bytes_of("The quick brown fox jumps over the lazy dog");
  for (std::size_t cut = 0; cut <= all.size(); ++cut) {
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all));
    EXPECT_EQ(crc32c_by_table(all.subspan(cut), crc32c_by_table(all.first(cut))), crc32c(all));
  }
}

}  // namespace
}  // namespace hydra
