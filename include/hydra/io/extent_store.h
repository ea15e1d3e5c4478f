#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/core/clock.h"
#include "hydra/core/log.h"
#include "hydra/core/trace.h"
#include "hydra/io/block_io.h"

namespace hydra {

/// One drive: a directory on it, and how many bytes of it are taken.
struct DriveOptions {
  std::string directory{};
  Bytes size{};
};

struct ExtentStoreOptions {
  std::vector<DriveOptions> drives{};  ///< at least one; extents are spread over all of them
  BlockIoKind kind = BlockIoKind::kAutomatic;
  int depth = 16;  ///< transfers in flight per drive; larger needs more of a queue
  Bytes block{std::int64_t{1} << 20};  ///< largest transfer; a multiple of 4 KiB
  /// How long a transfer may take before the log names its drive; more often is said after twice
  /// that time, four times, and so on. The transfer is waited for all the same: its memory is the
  /// system's until it answers. Larger: a drive that has gone is named later.
  Nanoseconds warn_after{std::chrono::seconds(60)};
  LogSink* log = nullptr;      ///< borrowed; null: no notices
  TraceSink* trace = nullptr;  ///< borrowed, with `clock`; null: no trace
  const Clock* clock = nullptr;
  /// Test setting: wraps each drive's BlockIo.
  std::function<std::unique_ptr<BlockIo>(std::unique_ptr<BlockIo>)> wrap{};
};

/// What went through a store in one direction.
struct IoStats {
  Bytes bytes;
  Nanoseconds busy{0};    ///< with at least one transfer of this direction in flight
  double mean_depth = 0;  ///< transfers in flight, while busy
};

/// What went to and from one drive, and what it does now.
struct DriveStats {
  std::string directory;
  IoStats written;
  IoStats read;
  Nanoseconds both{0};  ///< with transfers of both directions in flight
  int in_flight = 0;    ///< now
  Nanoseconds busy() const { return written.busy + read.busy - both; }
};

/// Keeps runs of bytes on drives: the storage tier.
///
/// An extent is room for a fixed number of bytes, in 4 KiB units, spread over the drives. It is
/// written and read as a whole. Reads and writes are asynchronous: blocks of all requests share
/// each drive's queue, which is kept full, the most urgent first. Short transfers are continued.
/// Each block's CRC-32C is kept in memory when it is written and compared when it comes back, so
/// that a write that was lost, or torn, or went elsewhere is seen as well as a flipped bit.
///
/// A drive whose system interface fails for good is retired: every request that has a block on it,
/// present or later, ends with a StorageError that names the drive; new extents go to the others.
///
/// Memory of a request is page-aligned, and rounded up to 4 KiB its bytes may be touched; it is
/// borrowed until the request's completion has been given to `post`.
///
/// Thread safety: confined to one thread. `post` is called on the drives' threads; brief, never
/// throwing. Errors: as SpillFile and BlockIo when it is made.
class ExtentStore {
 public:
  using ExtentId = std::int64_t;
  using RequestId = std::int64_t;
  struct Done {
    RequestId request = 0;
    std::exception_ptr failure;  ///< StorageError, CorruptionError; null when it went well
  };
  using Post = std::function<void(Done)>;

  ExtentStore(ExtentStoreOptions options, Post post);
  ~ExtentStore();
  ExtentStore(const ExtentStore&) = delete;
  ExtentStore& operator=(const ExtentStore&) = delete;

  /// Returns an extent of `bytes`, or nothing when the drives have no room for it. `label` says
  /// what it holds, in errors and traces.
  std::optional<ExtentId> allocate(Bytes bytes, std::string label);
  /// Gives an extent back. No request of it may be under way.
  void free(ExtentId extent);

  /// Starts writing or reading a whole extent. Smaller `priority` goes first. An extent is written
  /// by one request at a time. Errors: InternalError when an extent is read whose last write has
  /// not ended well.
  RequestId write(ExtentId extent, const std::byte* data, std::int64_t priority);
  RequestId read(ExtentId extent, std::byte* data, std::int64_t priority);
  /// Takes in the end of a request, once for each that `post` was given, on the owner's thread.
  void finish(const Done& done);
  /// Makes a waiting request more (or less) urgent.
  void set_priority(RequestId request, std::int64_t priority);

  Bytes size(ExtentId extent) const;
  Bytes capacity() const;
  Bytes used() const;
  /// What went to the drives (or came from them), all drives together; `busy` is that of the
  /// busiest drive. Thread safety: thread-safe.
  IoStats stats(bool write) const;
  /// Each drive by itself, in the order of the options. Thread safety: thread-safe.
  std::vector<DriveStats> drive_stats() const;
  /// "io_uring", "threads" or "memory".
  std::string backend() const;

  /// Finishes what is under way, then stops the drives' threads. Idempotent.
  void close() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
