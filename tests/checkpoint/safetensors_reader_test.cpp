#include <sys/stat.h>

#include <thread>

#include "checkpoint_fixture.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

class SafetensorsReaderTest : public CheckpointFixture {
 protected:
  std::string refusal(const std::string& file) const {
    const std::string where = write("bad.safetensors", file);
    try {
      SafetensorsReader reader(where);
      return "no refusal";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(where), std::string::npos) << error.what();
      return error.what();
    } catch (const std::exception& error) {
      return std::string("another type: ") + error.what();
    }
  }

  void expect_refusal(const std::string& file, const std::string& part) const {
    const std::string message = refusal(file);
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
  }

  /// The same for a header in front of enough data.
  void expect_header_refusal(const std::string& header, const std::string& part) const {
    expect_refusal(file_of(header, 24), part);
  }
};

TEST_F(SafetensorsReaderTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string header = "{" + entry("late", "F32", "[2,2]", "[8,24]") +
                             ",\"__metadata__\":{\"format\":\"pt\"}," +
                             entry("early", "BF16", "[4]", "[0,8]") + "," +
                             entry("none", "U8", "[3,0]", "[24,24]") + "}   ";
  const SafetensorsReader reader(write("a.safetensors", file_of(header, 24)));
  EXPECT_EQ(reader.tensors(), (std::vector<TensorSpec>{{"early", StoredDtype::kBF16, {4}},
                                                       {"late", StoredDtype::kF32, {2, 2}},
                                                       {"none", StoredDtype::kU8, {3, 0}}}));
  EXPECT_EQ(reader.metadata(), (TensorMetadata{{"format", "pt"}}));
  EXPECT_EQ(read_all(reader, "early"), bytes_counting_from(0, 8));
  EXPECT_EQ(read_all(reader, "late"), bytes_counting_from(8, 16));
  EXPECT_EQ(read_all(reader, "none"), bytes_counting_from(0, 0));
  EXPECT_EQ(reader.find("other"), nullptr);
}

TEST_F(SafetensorsReaderTest, ReadsAnyRangeOfATensor) {
  const SafetensorsReader reader(
      write("a.safetensors", file_of("{" + entry("t", "U8", "[24]", "[0,24]") + "}", 24)));
  for (std::size_t begin = 0; begin <= 24; ++begin) {
    for (std::size_t end = begin; end <= 24; ++end) {
      std::vector<std::byte> into(end - begin);
      reader.read("t", Bytes(static_cast<std::int64_t>(begin)), into);
      EXPECT_EQ(into, bytes_counting_from(begin, end - begin));
    }
  }
  std::vector<std::byte> into(2);
  EXPECT_THROW(reader.read("t", Bytes(23), into), InvalidArgument);
  EXPECT_THROW(reader.read("t", Bytes(25), {}), InvalidArgument);
  EXPECT_THROW(reader.read("t", Bytes(-1), into), InvalidArgument);
  EXPECT_THROW(reader.read("u", Bytes(0), into), InvalidArgument);
}

TEST_F(SafetensorsReaderTest, ReadsFromSeveralThreads) {
  const SafetensorsReader reader(
      write("a.safetensors", file_of("{" + entry("t", "U8", "[200]", "[0,200]") + "}", 200)));
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&reader] {
      for (int round = 0; round < 200; ++round) {
        EXPECT_EQ(read_all(reader, "t"), bytes_counting_from(0, 200));
      }
    });
  }
}

TEST_F(SafetensorsReaderTest, ReadsAFileWithoutTensors) {
  EXPECT_EQ(refusal(file_of("{}", 0)), "no refusal");
  EXPECT_EQ(refusal(file_of("{\"__metadata__\":{}}", 0)), "no refusal");
}

TEST_F(SafetensorsReaderTest, RefusesHeadersOfAWrongLength) {
  expect_refusal("", "has 0 bytes");
  expect_refusal("\x02\0\0", "bytes: no safetensors file");
  expect_refusal(std::string(8, '\0'), "a header of 0 bytes");
  expect_refusal(std::string("\x01\0\0\0\0\0\0\0{", 9), "a header of 1 bytes");
  expect_refusal(std::string("\x10\0\0\0\0\0\0\0{}", 10), "does not fit the file of 10");
  expect_refusal(std::string(20, '\xFF'), "a header of 18446744073709551615 bytes");
  expect_refusal(std::string("\x01\xE1\xF5\x05\0\0\0\0{}", 10), "a header of 100000001 bytes");
  expect_refusal("PK\x03\x04 a zip of PyTorch's", "is it safetensors?");
}

TEST_F(SafetensorsReaderTest, RefusesHeadersThatAreNotJson) {
  expect_header_refusal(" {}", "does not begin with {");
  expect_header_refusal("[]", "does not begin with {");
  expect_header_refusal("\xEF\xBB\xBF{}", "does not begin with {");
  expect_header_refusal("{} x", "not valid JSON");
  expect_header_refusal("{\"a\"", "not valid JSON");
  expect_header_refusal("{\"\xC3\": 1}", "UTF-8");
  expect_header_refusal(std::string("{}\0\0", 4), "zero byte");
  expect_header_refusal("{} // x", "not valid JSON");
}

TEST_F(SafetensorsReaderTest, RefusesEntriesThatTheFormatDoesNotHave) {
  const std::string good = entry("a", "U8", "[24]", "[0,24]");
  expect_header_refusal("{\"a\":1}", "\"a\"");
  expect_header_refusal("{\"a\":[]}", "\"a\" is a list");
  expect_header_refusal("{" + good + "," + good + "}", "\"a\" is given twice");
  expect_header_refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[24]}}", "missing");
  expect_header_refusal("{\"a\":{}}", "missing");
  expect_header_refusal("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", "dtype is given twice");
  expect_header_refusal("{\"a\":{\"strides\":[1]}}", "\"strides\" is unknown");
  expect_header_refusal("{" + entry("a", "F128", "[24]", "[0,24]") + "}", "\"F128\" is unknown");
  expect_header_refusal("{\"a\":{\"dtype\":3}}", "dtype has a number");
  expect_header_refusal("{\"a\":{\"dtype\":[]}}", "dtype has a list");
  expect_header_refusal("{\"a\":{\"shape\":{}}}", "shape has an object");
  expect_header_refusal("{\"a\":{\"shape\":null}}", "shape has null");
  expect_header_refusal("{\"a\":{\"shape\":\"2\"}}", "shape has text");
  for (const char* number : {"-1", "1.0", "1e3", "true", "[1]", "\"1\"", "99999999999999999999"}) {
    expect_header_refusal("{" + entry("a", "U8", std::string("[") + number + "]", "[0,24]") + "}",
                          "\"a\": shape has");
  }
}

TEST_F(SafetensorsReaderTest, RefusesMetadataThatIsNotText) {
  expect_header_refusal("{\"__metadata__\":null}", "__metadata__");
  expect_header_refusal("{\"__metadata__\":{\"a\":1}}", "metadata: a has a number");
  expect_header_refusal("{\"__metadata__\":{\"a\":{}}}", "metadata: a has an object");
  expect_header_refusal("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", "\"a\" twice");
  expect_header_refusal("{\"__metadata__\":{},\"__metadata__\":{}}", "given twice");
}

TEST_F(SafetensorsReaderTest, RefusesTensorsThatDoNotTileTheData) {
  const auto two = [](const std::string& first, const std::string& second) {
    return "{" + entry("a", "U8", "[12]", first) + "," + entry("b", "U8", "[12]", second) + "}";
  };
  EXPECT_EQ(refusal(file_of(two("[12,24]", "[0,12]"), 24)), "no refusal");
  expect_header_refusal(two("[0,12]", "[11,23]"), "\"b\" has bytes 11 to 23, which overlap");
  expect_header_refusal(two("[0,12]", "[13,25]"), "\"b\" has bytes 13 to 25, which leave a gap");
  expect_header_refusal(two("[1,13]", "[13,25]"), "\"a\" has bytes 1 to 13, which leave a gap");
  expect_header_refusal(two("[0,12]", "[0,12]"), "overlap");
  expect_header_refusal(two("[0,12]", "[12,25]"), "need 12");
  expect_header_refusal(two("[0,12]", "[12,11]"), "need 12");
  expect_refusal(file_of(two("[0,12]", "[12,24]"), 23), "it was cut off");
  expect_refusal(file_of(two("[0,12]", "[12,24]"), 25), "appended");
  expect_header_refusal("{}", "appended");
  expect_header_refusal("{" + entry("a", "U8", "[24]", "[0]") + "}", "not two numbers");
  expect_header_refusal("{" + entry("a", "U8", "[24]", "[0,24,24]") + "}", "more than 2");
}

TEST_F(SafetensorsReaderTest, RefusesSizesThatOverflow) {
  const std::string top = "9223372036854775807";
  for (const std::string& shape : std::vector<std::string>{
           "[" + top + "]", "[4294967296,4294967296]", "[4294967296,4294967296,0]"}) {
    expect_header_refusal("{" + entry("a", "U8", shape, "[0,24]") + "}", "more bits");
  }
  expect_header_refusal("{" + entry("a", "U8", "[18446744073709551615]", "[0,24]") + "}",
                        "passes 63 bits");
  expect_header_refusal("{" + entry("a", "U8", "[24]", "[0," + top + "]") + "}", "need 24");
  expect_header_refusal("{" + entry("a", "U8", "[0]", "[" + top + "," + top + "]") + "}", "gap");
  expect_header_refusal("{" + entry("a", "F4", "[47]", "[0,24]") + "}", "whole bytes");
  std::string shape = "[24";
  for (int i = 0; i < 64; ++i) shape += ",1";
  expect_header_refusal("{" + entry("a", "U8", shape + "]", "[0,24]") + "}", "more than 64");
}

TEST_F(SafetensorsReaderTest, RefusesWhatIsNoFile) {
  EXPECT_THROW(SafetensorsReader(path("missing")), DataError);
  EXPECT_THROW(SafetensorsReader(folder_.string()), DataError);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(SafetensorsReader(path("pipe")), DataError);
}

TEST_F(SafetensorsReaderTest, AFileThatIsCutOffAfterwardsGivesADataError) {
  const std::string file = file_of("{" + entry("t", "U8", "[24]", "[0,24]") + "}", 24);
  const SafetensorsReader reader(write("a.safetensors", file));
  std::filesystem::resize_file(path("a.safetensors"), file.size() - 1);
  EXPECT_THROW(read_all(reader, "t"), DataError);
}

}  // namespace
}  // namespace hydra
