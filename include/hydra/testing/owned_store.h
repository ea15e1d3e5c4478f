#pragma once

#include <stdlib.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "hydra/core/random.h"
#include "hydra/io/extent_map.h"
#include "hydra/io/extent_store.h"

namespace hydra::testing {

/// A directory that is gone with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "hydra-io-XXXXXX").string();
    path_ = mkdtemp(name.data()) != nullptr ? name : "";
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Page-aligned memory of a whole number of 4 KiB, filled from a seed.
class AlignedBytes {
 public:
  AlignedBytes(std::int64_t bytes, std::uint64_t seed)
      : bytes_(static_cast<std::size_t>(Bytes(bytes).rounded_up(kExtentAlignment).count())),
        data_(static_cast<std::byte*>(std::aligned_alloc(kExtentAlignment, bytes_ + 4096))) {
    SplitMix64 random(seed);
    for (std::size_t i = 0; i < bytes_; i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random.next();
      std::memcpy(data_ + i, &word, sizeof word);
    }
  }
  ~AlignedBytes() { std::free(data_); }
  AlignedBytes(AlignedBytes&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  std::byte* data() const { return data_; }
  bool same_as(const AlignedBytes& other, std::int64_t bytes) const {
    return std::memcmp(data_, other.data_, static_cast<std::size_t>(bytes)) == 0;
  }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

/// A store and the owner's side of its completions.
class OwnedStore {
 public:
  explicit OwnedStore(ExtentStoreOptions options)
      : store_(std::move(options), [this](ExtentStore::Done done) {
          std::lock_guard lock(mutex_);
          done_[done.request] = std::move(done);
          arrived_.notify_all();
        }) {}
  ~OwnedStore() { store_.close(); }

  ExtentStore& operator*() { return store_; }
  ExtentStore* operator->() { return &store_; }

  /// Waits for a request, takes its end in, and returns its failure.
  std::exception_ptr wait(ExtentStore::RequestId request) {
    ExtentStore::Done done;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return done_.contains(request); });
      done = std::move(done_[request]);
      done_.erase(request);
    }
    store_.finish(done);
    return done.failure;
  }
  void get(ExtentStore::RequestId request) {
    if (const auto failure = wait(request)) std::rethrow_exception(failure);
  }
  bool has_ended(ExtentStore::RequestId request) {
    std::lock_guard lock(mutex_);
    return done_.contains(request);
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<ExtentStore::RequestId, ExtentStore::Done> done_;
  ExtentStore store_;
};

}  // namespace hydra::testing
