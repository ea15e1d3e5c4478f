#include <limits>
#include <numeric>

#include "checkpoint/safetensors_header.h"
#include "checkpoint_fixture.h"
#include "hydra/core/error.h"
#include "hydra/core/random.h"

namespace hydra {
namespace {

/// Damages valid files in ways that are the same on every run. Whatever comes out is refused with
/// a DataError, or is a file whose tensors tile its data.
class SafetensorsFuzzTest : public CheckpointFixture {
 protected:
  static std::vector<std::string> seeds() {
    return {
        "{}",
        "{" + entry("a", "F32", "[2,2]", "[0,16]") + "}",
        "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\u00e9\"}," +
            entry("w.0", "BF16", "[4,2]", "[8,24]") + "," + entry("w.1", "I64", "[]", "[0,8]") +
            "," + entry("e", "F4", "[0,5]", "[24,24]") + "," +
            entry("z", "F6_E2M3", "[4]", "[24,27]") + "}     ",
    };
  }

  static std::string piece(SplitMix64& random) {
    static const std::vector<std::string> pieces{"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 ":",
                                                 "\"",
                                                 "\\",
                                                 "\\u0000",
                                                 "\\ud800",
                                                 "null",
                                                 "true",
                                                 "-1",
                                                 "0",
                                                 "1e9",
                                                 "18446744073709551615",
                                                 "18446744073709551616",
                                                 "9223372036854775807",
                                                 "0.5",
                                                 "\"dtype\"",
                                                 "\"shape\":[1]",
                                                 "\"data_offsets\":[0,0]",
                                                 "\"U8\"",
                                                 "\"F64\"",
                                                 "\"__metadata__\":{}",
                                                 "\xFF",
                                                 "\xC3\xA9",
                                                 std::string(1, '\0'),
                                                 " ",
                                                 "\n",
                                                 entry("a", "U8", "[0]", "[0,0]"),
                                                 std::string(70, '['),
                                                 "{\"a\":{\"a\":"};
    return pieces[random.below(pieces.size())];
  }

  static void damage(std::string& text, SplitMix64& random) {
    const std::size_t at = random.below(text.size() + 1);
    const std::size_t length = std::min<std::size_t>(random.below(12), text.size() - at);
    switch (random.below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.replace(at, length, piece(random));
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>('0' + random.below(10));
        break;
      default:
        text.insert(at, piece(random));
    }
  }

  static void expect_tiles(const detail::SafetensorsHeader& header, std::int64_t data_bytes) {
    std::int64_t end = 0;
    for (std::size_t i = 0; i < header.tensors.size(); ++i) {
      EXPECT_EQ(header.begins[i], end);
      end += bytes_of(header.tensors[i]).count();
    }
    EXPECT_EQ(end, data_bytes);
  }
};

TEST_F(SafetensorsFuzzTest, DamagedHeadersAreRefusedOrSound) {
  SplitMix64 random(2026);
  int sound = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string header = seeds()[random.below(3)];
    for (std::uint64_t i = random.below(4); i > 0; --i) damage(header, random);
    const std::int64_t data_bytes = std::vector<std::int64_t>{0, 16, 27}[random.below(3)];
    try {
      expect_tiles(detail::parse_safetensors_header(header, data_bytes, "fuzz"), data_bytes);
      ++sound;
    } catch (const DataError&) {
      // What damage is for.
    }
  }
  EXPECT_GT(sound, 5000);  // else the damage is such that nothing behind the first check is tried
  EXPECT_LT(sound, 55000);
}

TEST_F(SafetensorsFuzzTest, DamagedFilesAreRefusedOrRead) {
  SplitMix64 random(7);
  const std::vector<std::size_t> data_bytes{0, 16, 27};
  for (int round = 0; round < 1000; ++round) {
    const std::size_t seed = random.below(3);
    std::string file = file_of(seeds()[seed], data_bytes[seed]);
    for (std::uint64_t i = random.below(3); i > 0; --i) damage(file, random);
    if (random.below(4) == 0) file[random.below(8)] = static_cast<char>(random.below(256));
    const std::string where = write("fuzz.safetensors", file);
    try {
      const SafetensorsReader reader(where);
      for (const TensorSpec& tensor : reader.tensors()) read_all(reader, tensor.name);
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(where), std::string::npos) << error.what();
    }
  }
}

TEST_F(SafetensorsFuzzTest, EveryTruncationIsRefused) {
  const std::string whole = file_of(seeds()[2], 27);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_THROW(SafetensorsReader(write("cut.safetensors", whole.substr(0, bytes))), DataError)
        << bytes;
  }
}

}  // namespace
}  // namespace hydra
