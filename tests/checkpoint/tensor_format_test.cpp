#include "hydra/checkpoint/tensor_format.h"

#include <gtest/gtest.h>

#include <set>

#include "checkpoint/stored_dtypes.h"
#include "hydra/core/error.h"

namespace hydra {
namespace {

TEST(StoredDtypeTest, EveryDtypeIsFoundByItsOwnName) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < detail::kStoredDtypes.size(); ++i) {
    const auto dtype = static_cast<StoredDtype>(i);
    names.insert(to_string(dtype));
    EXPECT_EQ(detail::stored_dtype_of(to_string(dtype)), dtype);
  }
  EXPECT_EQ(names.size(), 22U);
  EXPECT_EQ(to_string(StoredDtype::kU64), "U64");
  EXPECT_EQ(to_string(StoredDtype::kF8E5M2Fnuz), "F8_E5M2FNUZ");
  EXPECT_EQ(to_string(StoredDtype::kBF16), "BF16");
  EXPECT_EQ(to_string(StoredDtype::kC64), "C64");
  EXPECT_EQ(detail::stored_dtype_of("f32"), std::nullopt);
}

TEST(TensorSpecTest, CountsBytes) {
  EXPECT_EQ(bytes_of({"t", StoredDtype::kF32, {2, 3}}), Bytes(24));
  EXPECT_EQ(bytes_of({"t", StoredDtype::kF64, {}}), Bytes(8));
  EXPECT_EQ(bytes_of({"t", StoredDtype::kU8, {7, 0}}), Bytes(0));
  EXPECT_EQ(bytes_of({"t", StoredDtype::kF4, {3, 2}}), Bytes(3));
  EXPECT_EQ(bytes_of({"t", StoredDtype::kF6E2M3, {4}}), Bytes(3));
}

TEST(TensorSpecTest, RefusesShapesWithoutASize) {
  const std::int64_t huge = std::int64_t{1} << 32;
  for (const TensorSpec& tensor : std::vector<TensorSpec>{
           {"t", StoredDtype::kF4, {3}},
           {"t", StoredDtype::kF6E3M2, {2}},
           {"t", StoredDtype::kU8, {-1}},
           {"t", StoredDtype::kU8, {huge, huge}},
           {"t", StoredDtype::kU8, {huge, huge, 0}},
           {"t", StoredDtype::kU64, {std::int64_t{1} << 57}},
       }) {
    EXPECT_THROW(bytes_of(tensor), InvalidArgument);
  }
}

}  // namespace
}  // namespace hydra
