#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace {

// Small tensors gain nothing from a second thread, and two threads that spin for each other on a
// busy machine take a hundred times as long.
class OneTorchThread final : public ::testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};

[[maybe_unused]] const auto* const kRegistered =
    ::testing::AddGlobalTestEnvironment(new OneTorchThread);

}  // namespace
