#include "hydra/checkpoint/sharded_safetensors.h"

#include "checkpoint_fixture.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

class ShardedSafetensorsTest : public CheckpointFixture {
 protected:
  static std::vector<TensorSpec> four() {
    return {{"w.0", StoredDtype::kF32, {4}},
            {"w.1", StoredDtype::kU8, {8}},
            {"w.2", StoredDtype::kU8, {100}},
            {"w.3", StoredDtype::kU8, {16}}};
  }

  std::vector<std::string> save(Bytes largest) const {
    ShardedSafetensorsWriter writer(folder_.string(), four(), {{"format", "pt"}}, largest);
    for (const auto& tensor : four()) {
      writer.append(tensor.name, bytes_counting_from(7, bytes_of(tensor).size()));
    }
    writer.commit();
    return writer.file_names();
  }

  void expect_contents() const {
    const ShardedSafetensorsReader reader(folder_.string());
    EXPECT_EQ(reader.tensors().size(), 4U);
    EXPECT_EQ(reader.metadata(), (TensorMetadata{{"format", "pt"}}));
    for (const auto& tensor : four()) {
      ASSERT_NE(reader.find(tensor.name), nullptr);
      EXPECT_EQ(*reader.find(tensor.name), tensor);
      EXPECT_EQ(read_all(reader, tensor.name), bytes_counting_from(7, bytes_of(tensor).size()));
    }
    EXPECT_EQ(reader.find("w.4"), nullptr);
    EXPECT_THROW(reader.read("w.4", Bytes(0), {}), InvalidArgument);
  }

  void expect_refusal(const std::string& part) const {
    try {
      ShardedSafetensorsReader reader(folder_.string());
      FAIL() << "nothing was thrown, expected: " << part;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  void write_index(const std::string& map) const {
    write("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  }
};

TEST_F(ShardedSafetensorsTest, OneFileThatFitsHasNoIndex) {
  EXPECT_EQ(save(Bytes(1000)), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(names_in_folder(), std::vector<std::string>{"model.safetensors"});
  expect_contents();
}

TEST_F(ShardedSafetensorsTest, CutsInOrderAndGivesALargeTensorAFileOfItsOwn) {
  const auto names = save(Bytes(24));
  EXPECT_EQ(names, (std::vector<std::string>{
                       "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                       "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  EXPECT_EQ(names_in_folder(), names);
  EXPECT_EQ(content("model.safetensors.index.json"),
            "{\n  \"metadata\": {\n    \"total_size\": 140\n  },\n  \"weight_map\": {\n"
            "    \"w.0\": \"model-00002-of-00003.safetensors\",\n"
            "    \"w.1\": \"model-00002-of-00003.safetensors\",\n"
            "    \"w.2\": \"model-00001-of-00003.safetensors\",\n"
            "    \"w.3\": \"model-00003-of-00003.safetensors\"\n  }\n}\n");
  expect_contents();
}

TEST_F(ShardedSafetensorsTest, AnySizeGivesTheSameContents) {
  for (const std::int64_t largest : {1, 16, 17, 25, 100, 124, 139, 140}) {
    for (const auto& name : names_in_folder()) std::filesystem::remove(path(name));
    save(Bytes(largest));
    expect_contents();
  }
}

TEST_F(ShardedSafetensorsTest, WritesNoMixtureOfOldAndNewFiles) {
  save(Bytes(1000));
  save(Bytes(1000));  // one file replaces one file
  EXPECT_THROW(save(Bytes(24)), InvalidArgument);
  expect_contents();
  std::filesystem::remove(path("model.safetensors"));
  save(Bytes(24));
  const auto names = names_in_folder();
  EXPECT_THROW(save(Bytes(24)), InvalidArgument);
  EXPECT_THROW(save(Bytes(1000)), InvalidArgument);
  EXPECT_EQ(names_in_folder(), names);
  expect_contents();
}

TEST_F(ShardedSafetensorsTest, WithoutCommitNothingIsLeft) {
  {
    ShardedSafetensorsWriter writer(folder_.string(), four(), {}, Bytes(24));
    EXPECT_THROW(writer.append("w.4", {}), InvalidArgument);
    EXPECT_THROW(writer.commit(), InvalidArgument);
  }
  EXPECT_TRUE(names_in_folder().empty());
  expect_refusal("holds no weights");
}

TEST_F(ShardedSafetensorsTest, RefusesSizesAndNamesThatCannotBe) {
  EXPECT_THROW(ShardedSafetensorsWriter(folder_.string(), four(), {}, Bytes(0)), InvalidArgument);
  auto twice = four();
  twice.push_back(twice.front());  // in another file than the first
  EXPECT_THROW(ShardedSafetensorsWriter(folder_.string(), twice, {}, Bytes(24)), InvalidArgument);
  EXPECT_TRUE(names_in_folder().empty());
}

TEST_F(ShardedSafetensorsTest, RefusesAnIndexThatDisagreesWithItsFiles) {
  write("a.safetensors", file_of("{" + entry("x", "U8", "[2]", "[0,2]") + "}", 2));
  write_index(R"({"x": "a.safetensors"})");
  EXPECT_EQ(ShardedSafetensorsReader(folder_.string()).tensors().size(), 1U);
  write_index(R"({"x": "a.safetensors", "y": "a.safetensors"})");
  expect_refusal("lacks tensors that " + path("model.safetensors.index.json") +
                 " says it has: \"y\"");
  write_index(R"({"y": "a.safetensors"})");
  expect_refusal("\"y\"");
  write("b.safetensors", file_of("{" + entry("y", "U8", "[2]", "[0,2]") + "," +
                                     entry("x", "U8", "[2]", "[2,4]") + "}",
                                 4));
  write_index(R"({"x": "a.safetensors", "y": "b.safetensors"})");
  expect_refusal("does not give it: \"x\"");
  write_index(R"({"x": "a.safetensors", "y": "c.safetensors"})");
  expect_refusal("c.safetensors");
}

TEST_F(ShardedSafetensorsTest, RefusesAMalformedIndex) {
  for (const char* map : {"[]", "null", "3"}) {
    write_index(map);
    expect_refusal("weight_map is no");
  }
  for (const char* file : {"3", "\"\"", "\"..\"", "\"../a\"", "\"/etc/passwd\"", "\"a\\u0000b\""}) {
    write_index("{\"x\": " + std::string(file) + "}");
    expect_refusal("tensor \"x\" is mapped to");
  }
  write_index(R"({"x": "a", "x": "b"})");
  expect_refusal("\"x\" twice");
  write("model.safetensors.index.json", "[]");
  expect_refusal("weight_map is no");
  write("model.safetensors.index.json", "{");
  expect_refusal("not valid JSON");
}

TEST_F(ShardedSafetensorsTest, NoMoreThanTenNamesAreListed) {
  write("a.safetensors", file_of("{}", 0));
  std::string map;
  for (int i = 10; i < 40; ++i) {
    map += (map.empty() ? "\"t" : ",\"t") + std::to_string(i) + "\":\"a.safetensors\"";
  }
  write_index("{" + map + "}");
  expect_refusal("\"t19\" and 20 more");
}

}  // namespace
}  // namespace hydra
