#include <sys/resource.h>

#include <csignal>

#include "checkpoint_fixture.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

class SafetensorsWriterTest : public CheckpointFixture {
 protected:
  static std::vector<TensorSpec> two() {
    return {{"a", StoredDtype::kU8, {3}}, {"b", StoredDtype::kF32, {2}}};
  }

  static void fill(SafetensorsWriter& writer) {
    writer.append("a", bytes_counting_from(100, 3));
    writer.append("b", bytes_counting_from(0, 8));
  }

  std::string committed(std::vector<TensorSpec> tensors, const TensorMetadata& metadata) const {
    SafetensorsWriter writer(path("x.safetensors"), tensors, metadata);
    for (const auto& tensor : tensors) {
      writer.append(tensor.name, bytes_counting_from(0, bytes_of(tensor).size()));
    }
    writer.commit();
    return content("x.safetensors");
  }
};

// The bytes are those of safetensors 0.8's save().
TEST_F(SafetensorsWriterTest, WritesTheReferencesBytes) {
  SafetensorsWriter writer(path("x.safetensors"), two(), {{"format", "pt"}});
  fill(writer);
  writer.commit();
  std::string expected =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
  expected.append((8 - expected.size() % 8) % 8, ' ');
  EXPECT_EQ(content("x.safetensors"), file_of(expected, 8) + "def");
  EXPECT_EQ(committed({}, {}), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST_F(SafetensorsWriterTest, WritesWhatTheReaderReads) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 22; ++i) {
    tensors.push_back({"t\u00e9\n\"/" + std::to_string(i), static_cast<StoredDtype>(i), {2, i, 4}});
  }
  committed(tensors, {{"k\u20ac", "v\x01"}, {"", ""}});
  const SafetensorsReader reader(path("x.safetensors"));
  EXPECT_EQ(reader.metadata(), (TensorMetadata{{"k\u20ac", "v\x01"}, {"", ""}}));
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  for (const auto& tensor : tensors) {
    ASSERT_NE(reader.find(tensor.name), nullptr);
    EXPECT_EQ(*reader.find(tensor.name), tensor);
    EXPECT_EQ(read_all(reader, tensor.name), bytes_counting_from(0, bytes_of(tensor).size()));
  }
}

TEST_F(SafetensorsWriterTest, TheBytesDependOnTheContentsAlone) {
  auto reversed = two();
  std::ranges::reverse(reversed);
  const std::string first = committed(two(), {{"x", "1"}, {"a", "2"}});
  EXPECT_EQ(committed(reversed, {{"a", "2"}, {"x", "1"}}), first);
}

TEST_F(SafetensorsWriterTest, TakesPiecesInAnyOrderOfTensors) {
  SafetensorsWriter writer(path("x.safetensors"), two());
  const auto b = bytes_counting_from(0, 8);
  writer.append("b", std::span(b).first(5));
  writer.append("a", bytes_counting_from(100, 3));
  writer.append("b", {});
  writer.append("b", std::span(b).subspan(5));
  writer.commit();
  const SafetensorsReader reader(path("x.safetensors"));
  EXPECT_EQ(read_all(reader, "b"), b);
  EXPECT_EQ(read_all(reader, "a"), bytes_counting_from(100, 3));
}

TEST_F(SafetensorsWriterTest, NothingIsSeenBeforeCommitAndTheOldFileStays) {
  write("x.safetensors", "old");
  {
    SafetensorsWriter writer(path("x.safetensors"), two());
    fill(writer);
    EXPECT_EQ(content("x.safetensors"), "old");
  }
  EXPECT_EQ(content("x.safetensors"), "old");
  EXPECT_EQ(names_in_folder(), std::vector<std::string>{"x.safetensors"});
}

TEST_F(SafetensorsWriterTest, TwoWritersOfOnePathDoNotMix) {
  SafetensorsWriter first(path("x.safetensors"), two(), {{"who", "first"}});
  SafetensorsWriter second(path("x.safetensors"), two(), {{"who", "second"}});
  fill(first);
  fill(second);
  first.commit();
  EXPECT_EQ(SafetensorsReader(path("x.safetensors")).metadata().at("who"), "first");
  second.commit();
  EXPECT_EQ(SafetensorsReader(path("x.safetensors")).metadata().at("who"), "second");
  EXPECT_EQ(names_in_folder(), std::vector<std::string>{"x.safetensors"});
}

TEST_F(SafetensorsWriterTest, RefusesToCommitWhatIsNotWhole) {
  SafetensorsWriter writer(path("x.safetensors"), two());
  writer.append("a", bytes_counting_from(0, 3));
  EXPECT_THROW(writer.commit(), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path("x.safetensors")));
  writer.append("b", bytes_counting_from(0, 8));
  EXPECT_THROW(writer.append("b", bytes_counting_from(0, 1)), InvalidArgument);
  EXPECT_THROW(writer.append("c", bytes_counting_from(0, 1)), InvalidArgument);
  writer.commit();
  EXPECT_THROW(writer.commit(), InvalidArgument);
}

TEST_F(SafetensorsWriterTest, RefusesNamesAndShapesThatTheFormatCannotHold) {
  const auto refuses = [this](const std::vector<TensorSpec>& tensors,
                              const TensorMetadata& metadata = {}) {
    EXPECT_THROW(SafetensorsWriter(path("x.safetensors"), tensors, metadata), InvalidArgument);
  };
  refuses({{"a", StoredDtype::kU8, {1}}, {"a", StoredDtype::kF32, {1}}});
  refuses({{"", StoredDtype::kU8, {1}}});
  refuses({{"__metadata__", StoredDtype::kU8, {1}}});
  refuses({{"\xFF", StoredDtype::kU8, {1}}});
  refuses({{"a", StoredDtype::kU8, {-1}}});
  refuses({{"a", StoredDtype::kU8, std::vector<std::int64_t>(65, 1)}});
  const std::int64_t half = std::int64_t{1} << 59;
  std::vector<TensorSpec> many;
  for (int i = 0; i < 17; ++i) many.push_back({std::to_string(i), StoredDtype::kU8, {half}});
  refuses(many);
  refuses(two(), {{"a", "\xC3"}});
  refuses({{std::string(100'000'000, 'n'), StoredDtype::kU8, {1}}});
  EXPECT_TRUE(names_in_folder().empty());
}

TEST_F(SafetensorsWriterTest, AFolderThatIsNotThereIsNamed) {
  try {
    SafetensorsWriter writer(path("none/x.safetensors"), two());
    FAIL() << "nothing was thrown";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find(path("none/x.safetensors")), std::string::npos);
  }
}

/// Makes files larger than some size impossible, as a full drive does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(SafetensorsWriterTest, ADriveWithoutRoomIsSeenFirstAndTheOldFileStays) {
  const std::string old = committed(two(), {});
  const FileSizeLimit limit(4096);
  try {
    SafetensorsWriter writer(path("x.safetensors"), {{"a", StoredDtype::kU8, {1 << 20}}});
    FAIL() << "nothing was thrown";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find(path("x.safetensors")), std::string::npos);
  }
  EXPECT_EQ(content("x.safetensors"), old);
  EXPECT_EQ(names_in_folder(), std::vector<std::string>{"x.safetensors"});
}

TEST_F(SafetensorsWriterTest, AFailedWriteIsNamedAndTheOldFileStays) {
  const std::string old = committed(two(), {});
  {
    SafetensorsWriter writer(path("x.safetensors"), {{"a", StoredDtype::kU8, {1 << 20}}});
    const FileSizeLimit limit(4096);
    EXPECT_THROW(writer.append("a", std::vector<std::byte>(1 << 20)), SystemError);
  }
  EXPECT_EQ(content("x.safetensors"), old);
  EXPECT_EQ(names_in_folder(), std::vector<std::string>{"x.safetensors"});
}

TEST_F(SafetensorsWriterTest, ALinkStaysAndADeviceIsRefused) {
  std::filesystem::create_symlink("target", path("link"));
  {
    SafetensorsWriter writer(path("link"), two());
    fill(writer);
    writer.commit();
  }
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_TRUE(std::filesystem::is_regular_file(path("target")));
  EXPECT_THROW(SafetensorsWriter("/dev/null", two()), SystemError);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(SafetensorsWriterTest, AFailedRenameLeavesNothing) {
  {
    SafetensorsWriter writer(path("x.safetensors"), two());
    fill(writer);
    std::filesystem::create_directories(path("x.safetensors/full"));
    EXPECT_THROW(writer.commit(), SystemError);
  }
  EXPECT_EQ(names_in_folder(), std::vector<std::string>{"x.safetensors"});
}

}  // namespace
}  // namespace hydra
