#include "hydra/core/sha256.h"

#include <gtest/gtest.h>

namespace hydra {
namespace {

std::string digest(const std::string& text, std::size_t piece) {
  Sha256 sha;
  const auto bytes = std::as_bytes(std::span(text));
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    sha.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
  }
  return sha.hex_digest();
}

TEST(Sha256Test, GivesThePublishedDigests) {
  EXPECT_EQ(digest("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest(std::string(1000000, 'a'), 1000),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, DoesNotDependOnHowTheDataIsCut) {
  const std::string text(1000, 'x');
  for (const std::size_t piece : {1, 7, 55, 56, 63, 64, 65, 999}) {
    EXPECT_EQ(digest(text, piece), digest(text, text.size())) << piece;
  }
}

TEST(Sha256Test, GivesTheDigestOfTwoBlocks) {
  EXPECT_EQ(digest("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                   "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
                   112),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

// Python's hashlib gave the digest of these 200 digests.
TEST(Sha256Test, AgreesWithAnotherImplementationOnEveryLengthAroundABlock) {
  std::string digests;
  for (int length = 0; length < 200; ++length) {
    std::string text;
    for (int i = 0; i < length; ++i) text += static_cast<char>(i * 7 + length);
    digests += digest(text, 64);
  }
  EXPECT_EQ(digest(digests, digests.size()),
            "b8f5d54cfd1cbbcae2003d1365d9fab7e5bc61813fa3486ee6a6a6bf38db4745");
}

TEST(Sha256Test, AnEmptyPieceChangesNothing) {
  Sha256 sha;
  sha.update({});
  sha.update(std::as_bytes(std::span("abc", 3)));
  sha.update({});
  EXPECT_EQ(sha.hex_digest(), digest("abc", 3));
}

}  // namespace
}  // namespace hydra
