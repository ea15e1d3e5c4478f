#include "hydra/data/batch.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "hydra/core/error.h"

namespace hydra {
namespace {

/// Six rows with two input tensors and one side tensor.
Batch six_rows() {
  Batch batch;
  batch.rows = 6;
  batch.inputs = {torch::arange(24).view({6, 4}), torch::arange(6).to(torch::kFloat)};
  batch.side = {{"targets", torch::arange(12).view({6, 2})}};
  batch.loss_denominator = 12.0;
  batch.tokens = 12;
  return batch;
}

struct Fault {
  std::string says;  // what the message must name
  std::function<void(Batch&)> make;
};

TEST(ValidateBatchTest, AGoodBatchIsTakenAsItIs) {
  Batch batch = six_rows();
  const Batch before = batch;
  validate_batch(batch, 0);
  // Contiguous tensors are not copied.
  EXPECT_EQ(batch.inputs[0].data_ptr(), before.inputs[0].data_ptr());
  EXPECT_EQ(batch.side[0].second.data_ptr(), before.side[0].second.data_ptr());
}

TEST(ValidateBatchTest, ABatchNeedsNoSideInput) {
  Batch batch = six_rows();
  batch.side.clear();
  validate_batch(batch, 0);
  EXPECT_TRUE(batch.side.empty());
}

TEST(ValidateBatchTest, EveryFaultIsNamedWithItsStepAndTensor) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<Fault> faults{
      {"has 0 rows", [](Batch& batch) { batch.rows = 0; }},
      {"has -1 rows", [](Batch& batch) { batch.rows = -1; }},
      {"has no input tensor", [](Batch& batch) { batch.inputs.clear(); }},
      {"loss_denominator is 0", [](Batch& batch) { batch.loss_denominator = 0; }},
      {"loss_denominator is -2", [](Batch& batch) { batch.loss_denominator = -2; }},
      {"loss_denominator is nan", [kNan](Batch& batch) { batch.loss_denominator = kNan; }},
      {"loss_denominator is inf",
       [kInfinity](Batch& batch) { batch.loss_denominator = kInfinity; }},
      {"input 1 is undefined", [](Batch& batch) { batch.inputs[1] = at::Tensor(); }},
      {"input 0 must be a dense tensor in host memory",
       [](Batch& batch) {
         batch.inputs[0] = torch::empty({6, 4}, torch::kMeta);
       }},
      {"input 0 must be a dense tensor in host memory",
       [](Batch& batch) {
         batch.inputs[0] = torch::ones({6, 4}).to_sparse();
       }},
      {"input 0 must be a dense tensor in host memory",
       [](Batch& batch) {
         batch.inputs[0] = torch::ones({6, 4}).to_sparse_csr();
       }},
      {"input 1 must have 6 rows, has 5",
       [](Batch& batch) { batch.inputs[1] = torch::zeros({5}); }},
      {"input 0 must have 6 rows, has no dimension",
       [](Batch& batch) { batch.inputs[0] = torch::tensor(6); }},
      {"side input \"targets\" is undefined",
       [](Batch& batch) { batch.side[0].second = at::Tensor(); }},
      {"side input \"targets\" must have 6 rows, has 7",
       [](Batch& batch) {
         batch.side[0].second = torch::zeros({7, 2});
       }},
      {"side input \"mask\" must be a dense tensor in host memory",
       [](Batch& batch) { batch.side.emplace_back("mask", torch::empty({6}, torch::kMeta)); }},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.says);
    Batch batch = six_rows();
    fault.make(batch);
    try {
      validate_batch(batch, 41);
      ADD_FAILURE() << "was taken";
    } catch (const DataError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("step 41: " + fault.says), std::string::npos) << message;
    }
  }
}

TEST(ValidateBatchTest, TensorsBecomeContiguousAndLeaveTheGraph) {
  Batch batch = six_rows();
  const at::Tensor transposed = torch::randn({4, 6}).requires_grad_(true).t();
  const at::Tensor strided = torch::arange(24).view({6, 4}).slice(1, 0, 4, 2);
  batch.inputs[0] = transposed;
  batch.side[0].second = strided;
  validate_batch(batch, 0);
  EXPECT_TRUE(batch.inputs[0].is_contiguous());
  EXPECT_FALSE(batch.inputs[0].requires_grad());
  EXPECT_TRUE(torch::equal(batch.inputs[0], transposed));
  EXPECT_TRUE(batch.side[0].second.is_contiguous());
  EXPECT_TRUE(torch::equal(batch.side[0].second, strided));
}

TEST(RowsOfTest, RowsAreViewsOfTheBatch) {
  const Batch batch = six_rows();
  const Batch rows = rows_of(batch, 2, 5);
  EXPECT_EQ(rows.rows, 3);
  EXPECT_EQ(rows.tokens, 6);
  ASSERT_EQ(rows.inputs.size(), 2U);
  ASSERT_EQ(rows.side.size(), 1U);
  EXPECT_EQ(rows.side[0].first, "targets");
  EXPECT_TRUE(torch::equal(rows.inputs[0], batch.inputs[0].slice(0, 2, 5)));
  EXPECT_TRUE(torch::equal(rows.inputs[1], batch.inputs[1].slice(0, 2, 5)));
  EXPECT_TRUE(torch::equal(rows.side[0].second, batch.side[0].second.slice(0, 2, 5)));
  EXPECT_TRUE(rows.inputs[0].is_alias_of(batch.inputs[0]));
  EXPECT_TRUE(rows.inputs[1].is_alias_of(batch.inputs[1]));
  EXPECT_TRUE(rows.side[0].second.is_alias_of(batch.side[0].second));
  EXPECT_TRUE(rows.inputs[0].is_contiguous());
}

TEST(RowsOfTest, EveryPartKeepsTheWholeBatchsLossDenominator) {
  const Batch batch = six_rows();
  EXPECT_EQ(rows_of(batch, 0, 1).loss_denominator, 12.0);
  EXPECT_EQ(rows_of(batch, 1, 6).loss_denominator, 12.0);
}

TEST(RowsOfTest, TheTokensOfEvenPartsAddUp) {
  const Batch batch = six_rows();
  std::int64_t tokens = 0;
  for (std::int64_t begin = 0; begin < 6; begin += 2) {
    tokens += rows_of(batch, begin, begin + 2).tokens;
  }
  EXPECT_EQ(tokens, batch.tokens);
}

TEST(RowsOfTest, AllRowsAreTheBatch) {
  const Batch batch = six_rows();
  const Batch rows = rows_of(batch, 0, 6);
  EXPECT_EQ(rows.rows, 6);
  EXPECT_EQ(rows.tokens, 12);
  EXPECT_TRUE(torch::equal(rows.inputs[0], batch.inputs[0]));
}

TEST(BatchBytesTest, CountsInputsAndSideInputs) {
  // int64 [6, 4], float [6] and int64 [6, 2].
  EXPECT_EQ(batch_bytes(six_rows()).count(), 6 * 4 * 8 + 6 * 4 + 6 * 2 * 8);
  EXPECT_EQ(batch_bytes(Batch()).count(), 0);
  EXPECT_EQ(batch_bytes(rows_of(six_rows(), 0, 2)).count(), 2 * 4 * 8 + 2 * 4 + 2 * 2 * 8);
}

}  // namespace
}  // namespace hydra
