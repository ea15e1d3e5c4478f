// More elements than 31 bits count. The memory between the ends is one window, mapped again and
// again, so that 40 GiB of addresses cost some MiB.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <system_error>
#include <vector>

#include "hydra/optim/optimizer.h"

namespace hydra {
namespace {

constexpr std::int64_t kWindow = 2 << 20;  // bytes
constexpr std::int64_t kTail = 17;         // elements behind the last window
constexpr std::int64_t kElements = (std::int64_t{1} << 31) + kTail;

/// kElements floats. All but the last 17 share the memory of one window, zeros at first.
class LargeBuffer {
 public:
  LargeBuffer() {
    const int file = memfd_create("window", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kWindow) != 0) fail("memfd_create");
    void* range = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) fail("mmap");
    data_ = static_cast<float*>(range);
    auto* bytes = static_cast<std::byte*>(range);
    for (std::int64_t at = 0; at + kWindow <= kBytes; at += kWindow) {
      if (mmap(bytes + at, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
               file, 0) == MAP_FAILED) {
        fail("mmap of a window");
      }
    }
    close(file);
  }
  ~LargeBuffer() { munmap(data_, kBytes); }
  LargeBuffer(const LargeBuffer&) = delete;
  LargeBuffer& operator=(const LargeBuffer&) = delete;

  float* data() const { return data_; }
  /// The last 17 elements, memory of their own.
  float* tail() const { return data_ + (kElements - kTail); }
  void fill_tail(float first) const {
    for (std::int64_t i = 0; i < kTail; ++i) tail()[i] = first * static_cast<float>(i + 1);
  }
  std::vector<float> tail_values() const { return {tail(), tail() + kTail}; }

 private:
  static void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  static constexpr std::int64_t kBytes = (kElements * 4 + 4095) / 4096 * 4096;
  float* data_ = nullptr;
};

#if defined(__SANITIZE_THREAD__)
constexpr bool kShadowed = true;  // its shadow of 40 GiB would be real memory
#else
constexpr bool kShadowed = false;
#endif

class LargeBuffersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kShadowed) GTEST_SKIP() << "the thread sanitizer's shadow would take 160 GiB";
  }
};

TEST_F(LargeBuffersTest, EveryElementOfAnUpdateIsUpdatedAsInASmallOne) {
  const LargeBuffer parameter;
  const LargeBuffer gradient;
  const LargeBuffer state0;
  const LargeBuffer state1;
  for (const OptimizerOptions& options :
       {OptimizerOptions(AdamWOptions{}), OptimizerOptions(SgdOptions{.momentum = 0.9})}) {
    const auto optimizer = make_optimizer(options);
    parameter.fill_tail(0.5F);
    gradient.fill_tail(-0.25F);
    state0.fill_tail(0.0F);
    state1.fill_tail(0.0F);
    ParameterUpdate update;
    update.learning_rate = 0.01;
    update.weight_decay = 0.1;

    std::vector<float> p = parameter.tail_values();
    std::vector<float> g = gradient.tail_values();
    std::vector<float> s0(kTail);
    std::vector<float> s1(kTail);
    ParameterUpdate small = update;
    small.parameter = p.data();
    small.gradient = g.data();
    small.state0 = s0.data();
    small.state1 = s1.data();
    small.elements = kTail;
    optimizer->update(small);

    update.parameter = parameter.data();
    update.gradient = gradient.data();
    update.state0 = state0.data();
    update.state1 = state1.data();
    update.elements = kElements;
    optimizer->update(update);
    EXPECT_EQ(parameter.tail_values(), p);
    EXPECT_EQ(state0.tail_values(), s0);
    EXPECT_EQ(state1.tail_values(), s1);
    EXPECT_EQ(parameter.data()[0], 0.0F);  // zeros with a gradient of zero stay
  }
}

TEST_F(LargeBuffersTest, SumsOverThemCountTheirLastElements) {
  const LargeBuffer values;
  values.fill_tail(1.0F);
  EXPECT_EQ(square_sum(values.data(), kElements), 17.0 * 18 * 35 / 6);
  const LargeBuffer source;
  source.fill_tail(2.0F);
  add_into(values.data(), source.data(), kElements);
  for (std::int64_t i = 0; i < kTail; ++i) {
    EXPECT_EQ(values.tail()[i], 3.0F * static_cast<float>(i + 1));
  }
}

}  // namespace
}  // namespace hydra
