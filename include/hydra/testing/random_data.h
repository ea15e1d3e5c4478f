#pragma once

#include <cstdint>

#include "hydra/data/data_source.h"

namespace hydra::testing {

/// Language-model batches of random tokens with a pattern that a model can learn: each token
/// follows from the one before it nine times out of ten.
///
/// Shape: inputs[0] and side "targets" are int64 [rows, tokens]; loss_denominator = rows * tokens.
/// A batch is a function of (seed, step). Thread safety: thread-safe.
class RandomTokens final : public DataSource {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::int64_t rows = 4;
    std::int64_t tokens = 8;
    std::int64_t vocabulary_size = 64;
  };
  explicit RandomTokens(Options options) : options_(options) {}
  Batch batch(std::int64_t step) override;

 private:
  Options options_;
};

/// Regression batches: normal inputs and targets that are a fixed linear map of their sines.
///
/// Shape: inputs[0] fp32 [rows, in]; side "targets" fp32 [rows, out]; loss_denominator = rows.
/// A batch is a function of (seed, step). Thread safety: thread-safe.
class RandomRegression final : public DataSource {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::int64_t rows = 8;
    std::int64_t in = 8;
    std::int64_t out = 4;
  };
  explicit RandomRegression(Options options) : options_(options) {}
  Batch batch(std::int64_t step) override;

 private:
  Options options_;
};

/// Classification batches of images: each class brightens its own band of rows.
///
/// Shape: inputs[0] fp32 [rows, channels, size, size]; side "targets" int64 [rows];
/// loss_denominator = rows. A batch is a function of (seed, step). Thread safety: thread-safe.
class RandomImages final : public DataSource {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::int64_t rows = 8;
    std::int64_t channels = 3;
    std::int64_t size = 16;
    std::int64_t classes = 10;
  };
  explicit RandomImages(Options options) : options_(options) {}
  Batch batch(std::int64_t step) override;

 private:
  Options options_;
};

}  // namespace hydra::testing
