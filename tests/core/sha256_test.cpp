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

}  // namespace
}  // namespace hydra
