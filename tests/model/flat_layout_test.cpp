#include "hydra/model/flat_layout.h"

#include <gtest/gtest.h>

namespace hydra {
namespace {

using namespace literals;  // NOLINT: byte literals

ModelSchema::Parameter parameter(std::int64_t elements, bool frozen = false,
                                 std::optional<std::int64_t> tie = std::nullopt) {
  ModelSchema::Parameter made;
  made.shape = {elements};
  made.elements = elements;
  made.frozen = frozen;
  made.tie = tie;
  return made;
}

ModelSchema::Layer layer_of(std::vector<ModelSchema::Parameter> parameters) {
  ModelSchema::Layer layer;
  layer.parameters = std::move(parameters);
  return layer;
}

const std::vector<std::int64_t> kOddSizes = {1, 3, 7, 17, 1021, 0, 16, 5};

TEST(FlatLayoutTest, OddSizesLieAtMultiplesOf64AndDoNotOverlap) {
  ModelSchema schema;
  for (const std::int64_t elements : kOddSizes) {
    schema.layers.push_back(layer_of({parameter(elements), parameter(2 * elements)}));
  }
  const FlatLayout layout = make_layout(schema, 0, static_cast<std::int64_t>(schema.layers.size()));
  ASSERT_EQ(layout.trainable.size(), 2 * kOddSizes.size());
  Bytes end;
  for (const auto& entry : layout.trainable) {
    EXPECT_EQ(entry.offset.count() % 64, 0);
    EXPECT_GE(entry.offset, end);
    EXPECT_LT(entry.offset - end, 64_B);
    end = entry.offset + Bytes(entry.elements * 4);
  }
  EXPECT_EQ(layout.trainable_bytes, end.rounded_up(64));
  EXPECT_EQ(layout.frozen_bytes, 0_B);
}

TEST(FlatLayoutTest, EntriesNameTheirLayerAndPlaceInTheSchema) {
  ModelSchema schema;
  schema.layers = {layer_of({parameter(1)}), layer_of({parameter(2), parameter(3)}),
                   layer_of({parameter(4)})};
  const FlatLayout layout = make_layout(schema, 1, 3);
  EXPECT_EQ(layout.first_layer, 1);
  EXPECT_EQ(layout.end_layer, 3);
  ASSERT_EQ(layout.trainable.size(), 3U);
  EXPECT_EQ(layout.trainable[1].layer, 1);
  EXPECT_EQ(layout.trainable[1].parameter, 1);
  EXPECT_EQ(layout.trainable[2].layer, 2);
  EXPECT_EQ(layout.trainable[2].parameter, 0);
}

TEST(FlatLayoutTest, FrozenTiedAndBuffersLieInPartsOfTheirOwn) {
  ModelSchema schema;
  schema.layers = {layer_of({parameter(5), parameter(7, true), parameter(9, false, 0)})};
  ModelSchema::Buffer buffer;
  buffer.elements = 3;
  buffer.bytes = 24_B;  // of int64
  schema.layers[0].buffers = {buffer, buffer};
  ModelSchema::Tie tie;
  tie.elements = 9;
  schema.ties = {tie};
  const FlatLayout layout = make_layout(schema, 0, 1);
  ASSERT_EQ(layout.trainable.size(), 1U);
  ASSERT_EQ(layout.frozen.size(), 1U);
  EXPECT_EQ(layout.frozen[0].parameter, 1);
  ASSERT_EQ(layout.tied.size(), 1U);
  EXPECT_EQ(layout.tied[0].parameter, 2);
  EXPECT_EQ(layout.trainable_bytes, 64_B);
  EXPECT_EQ(layout.frozen_bytes, 64_B);
  ASSERT_EQ(layout.buffers.size(), 2U);
  EXPECT_EQ(layout.buffers[1].offset, 64_B);
  EXPECT_EQ(layout.buffer_bytes, 128_B);
  EXPECT_EQ(tie_bytes(schema, 0), 64_B);
}

TEST(FlatLayoutTest, EmptyShardsAndParametersTakeNoBytes) {
  ModelSchema schema;
  schema.layers = {layer_of({}), layer_of({parameter(0)})};
  const FlatLayout layout = make_layout(schema, 0, 2);
  EXPECT_EQ(layout.trainable.size(), 1U);
  EXPECT_EQ(layout.trainable_bytes, 0_B);
}

}  // namespace
}  // namespace hydra
