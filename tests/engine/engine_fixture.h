#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hydra/runtime/runtime.h"
#include "hydra/testing/plain_loop.h"
#include "hydra/testing/small_models.h"

namespace hydra {

/// Devices of one budget for a test's runtime, one Torch thread each.
inline RuntimeOptions test_runtime(int devices, Bytes memory) {
  RuntimeOptions options;
  for (int i = 0; i < devices; ++i) {
    VirtualDeviceOptions device;
    device.name = "cpu" + std::to_string(i);
    device.memory = memory;
    device.faults.watch_frees = true;
    options.devices.push_back(device);
  }
  options.host_memory = Bytes(std::int64_t{1} << 30);
  options.threads_per_device = 1;
  return options;
}

/// Runs the plain loop with one Torch thread, as test runtimes do.
inline testing::PlainResult plain(const JobOptions& job) {
  at::set_num_threads(1);
  return testing::plain_loop(job);
}

/// Bit equality of two sets of weights, with the first difference named.
inline ::testing::AssertionResult same_bits(const Weights& a, const Weights& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " tensors against " << b.size();
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first) {
      return ::testing::AssertionFailure() << a[i].first << " against " << b[i].first;
    }
    const at::Tensor x = a[i].second.contiguous();
    const at::Tensor y = b[i].second.contiguous();
    if (x.sizes() != y.sizes() || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) != 0) {
      return ::testing::AssertionFailure()
             << a[i].first << " differs by up to "
             << x.to(at::kDouble).sub(y.to(at::kDouble)).abs().max().item<double>();
    }
  }
  return ::testing::AssertionSuccess();
}

inline std::vector<double> losses_of(const JobHandle& job) {
  std::vector<double> losses;
  for (const StepMetrics& step : job.metrics()) losses.push_back(step.loss);
  return losses;
}

/// Expects a finished job to have the plain loop's bits.
inline void expect_plain_bits(const JobHandle& job, const testing::PlainResult& expected) {
  ASSERT_NO_THROW(job.get()) << job.name();
  EXPECT_EQ(losses_of(job), expected.losses) << job.name();
  EXPECT_TRUE(same_bits(job.weights(), expected.weights)) << job.name();
}

/// The smallest budget under which the job can be planned, to 64 bytes.
inline Bytes smallest_budget(const JobOptions& job) {
  std::int64_t refused = 0;
  std::int64_t fits = std::int64_t{64} << 20;
  while (fits - refused > 64) {
    const std::int64_t middle = (fits + refused) / 2;
    try {
      Runtime runtime(test_runtime(1, Bytes(middle)));
      runtime.plan(job);
      fits = middle;
    } catch (const Error&) {
      refused = middle;
    }
  }
  return Bytes(fits);
}

/// True when the long sweeps are asked for (scripts/test_long.sh).
inline bool long_run() { return std::getenv("HYDRA_LONG") != nullptr; }

}  // namespace hydra
