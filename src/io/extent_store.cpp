#include "hydra/io/extent_store.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "hydra/core/check.h"
#include "hydra/core/error.h"
#include "hydra/io/extent_map.h"
#include "hydra/io/spill_file.h"
#include "io/drive_queue.h"

namespace hydra {
namespace {

struct Drive {
  std::optional<SpillFile> file;  // none for memory
  ExtentMap map;
  std::unique_ptr<DriveQueue> queue;
};

/// The part of an extent that lies on one drive.
struct Piece {
  std::size_t drive = 0;
  Extent place;
  std::int64_t begin = 0;  // within the extent
};

struct Record {
  std::string label;
  Bytes size;
  std::vector<Piece> pieces;
  std::vector<std::vector<std::uint32_t>> checks;  // per piece and block
  bool written = false;
  int requests = 0;
};

/// A request under way.
struct Pending {
  ExtentStore::ExtentId extent = 0;
  std::shared_ptr<ExtentRequest> shared;
};

// With several drives: how much of an extent lies on one before it goes on on the next.
constexpr std::int64_t kBlocksPerStripe = 8;

void validate(const ExtentStoreOptions& options) {
  if (options.drives.empty()) throw InvalidArgument("a storage tier needs at least one drive");
  for (const DriveOptions& drive : options.drives) {
    if (drive.size < Bytes(kExtentAlignment)) {
      throw InvalidArgument("the storage size of " + drive.directory + " is " +
                            to_string(drive.size) + ": it must be at least 4 KiB");
    }
  }
  if (options.depth < 1 || options.depth > 4096) {
    throw InvalidArgument("the storage queue depth is " + std::to_string(options.depth) +
                          ", must be from 1 to 4096");
  }
  if (options.warn_after <= Nanoseconds(0)) {
    throw InvalidArgument("the time after which a silent drive is named is " +
                          std::to_string(seconds(options.warn_after)) + " s, must be positive");
  }
  if (options.block < Bytes(kExtentAlignment) || options.block.count() % kExtentAlignment != 0) {
    throw InvalidArgument("the storage block is " + to_string(options.block) +
                          ", must be a multiple of 4 KiB");
  }
}

}  // namespace

struct ExtentStore::Impl {
  Impl(ExtentStoreOptions given, Post given_post)
      : options(std::move(given)), post(std::move(given_post)) {
    validate(options);
    if (options.log == nullptr) options.log = &no_log;
    for (const DriveOptions& each : options.drives) drives.push_back(make_drive(each));
  }

  Drive make_drive(const DriveOptions& each) {
    Drive drive{std::nullopt, ExtentMap(each.size), nullptr};
    std::unique_ptr<BlockIo> io;
    if (options.kind == BlockIoKind::kMemory) {
      io = make_memory_block_io(drive.map.capacity());
    } else {
      drive.file.emplace(each.directory, drive.map.capacity(), *options.log);
      io = make_block_io(options.kind, drive.file->descriptor(), options.depth, *options.log);
    }
    if (options.wrap) io = options.wrap(std::move(io));
    drive.queue = std::make_unique<DriveQueue>(
        std::move(io),
        DriveQueue::Options{each.directory, options.depth, options.warn_after, options.log});
    return drive;
  }

  Record& record(ExtentId id) {
    const auto found = records.find(id);
    HYDRA_CHECK(found != records.end(), "no such extent: " + std::to_string(id));
    return found->second;
  }

  Bytes capacity() const {
    Bytes total;
    for (const Drive& drive : drives) total += drive.map.capacity();
    return total;
  }

  Bytes used() const {
    Bytes total;
    for (const Drive& drive : drives) total += drive.map.used();
    return total;
  }

  // One that works if any with room does. A retired one is still given out, so that whoever counted
  // on its room hears of it from the write rather than waits for ever.
  std::size_t emptiest_drive() const {
    const auto rank = [&](std::size_t d) {
      const Bytes free = drives[d].map.capacity() - drives[d].map.used();
      return std::pair(free > Bytes(0) && !drives[d].queue->retired(), free);
    };
    std::size_t best = 0;
    for (std::size_t d = 1; d < drives.size(); ++d) {
      if (rank(d) > rank(best)) best = d;
    }
    return best;
  }

  // Stripes of an extent go to whichever drive has most room, so that large ones lie on all of
  // them; where no free run is large enough a stripe is cut, so that room is never lost to gaps.
  std::vector<Piece> place(Bytes size) {
    std::vector<Piece> pieces;
    const std::int64_t whole = size.rounded_up(kExtentAlignment).count();
    for (std::int64_t begin = 0; begin < whole;) {
      const std::size_t d = emptiest_drive();
      const std::int64_t wanted =
          drives.size() == 1 ? whole - begin
                             : std::min(whole - begin, kBlocksPerStripe * options.block.count());
      const auto run =
          drives[d].map.allocate(std::min(Bytes(wanted), drives[d].map.largest_free()));
      HYDRA_CHECK(run && run->size > 0, "room was counted that is not there");
      pieces.push_back({d, *run, begin});
      begin += run->size;
    }
    return pieces;
  }

  RequestId start(ExtentId id, bool write, std::byte* data, std::int64_t priority);

  ExtentStoreOptions options;
  Post post;
  NullLogSink no_log;
  std::vector<Drive> drives;
  std::unordered_map<ExtentId, Record> records;
  std::unordered_map<RequestId, Pending> requests;
  ExtentId next_extent = 0;
  RequestId next_request = 0;
};

ExtentStore::RequestId ExtentStore::Impl::start(ExtentId id, bool write, std::byte* data,
                                                std::int64_t priority) {
  Record& extent = record(id);
  auto request = std::make_shared<ExtentRequest>();
  request->id = next_request++;
  request->write = write;
  request->label = extent.label;
  request->priority = priority;
  request->on_end = [this](ExtentRequest& ended) { post({ended.id, ended.take_failure()}); };
  if (options.clock != nullptr) request->begun = options.clock->now();
  std::vector<std::vector<BlockTask>> tasks(drives.size());
  std::int64_t blocks = 0;
  for (std::size_t p = 0; p < extent.pieces.size(); ++p) {
    const Piece& piece = extent.pieces[p];
    for (std::int64_t at = 0; at < piece.place.size; at += options.block.count()) {
      BlockTask task{request, piece.place.offset + at, data + piece.begin + at,
                     std::min(options.block.count(), piece.place.size - at),
                     &extent.checks[p][static_cast<std::size_t>(at / options.block.count())]};
      tasks[piece.drive].push_back(std::move(task));
      ++blocks;
    }
  }
  ++extent.requests;
  requests.emplace(request->id, Pending{id, request});
  request->blocks_left = blocks;
  if (blocks == 0) post({request->id, nullptr});
  for (std::size_t d = 0; d < drives.size(); ++d) {
    if (!tasks[d].empty()) drives[d].queue->push(std::move(tasks[d]));
  }
  return request->id;
}

ExtentStore::ExtentStore(ExtentStoreOptions options, Post post)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(post))) {}

ExtentStore::~ExtentStore() { close(); }

std::optional<ExtentStore::ExtentId> ExtentStore::allocate(Bytes bytes, std::string label) {
  if (bytes.rounded_up(kExtentAlignment) > capacity() - used()) return std::nullopt;
  Record extent;
  extent.label = std::move(label);
  extent.size = bytes;
  extent.pieces = impl_->place(bytes);
  const std::int64_t block = impl_->options.block.count();
  for (const Piece& piece : extent.pieces) {
    extent.checks.emplace_back(static_cast<std::size_t>((piece.place.size + block - 1) / block));
  }
  const ExtentId id = impl_->next_extent++;
  impl_->records.emplace(id, std::move(extent));
  return id;
}

void ExtentStore::free(ExtentId id) {
  const Record& extent = impl_->record(id);
  HYDRA_CHECK(extent.requests == 0, extent.label + " is given back while it is being moved");
  for (const Piece& piece : extent.pieces) impl_->drives[piece.drive].map.free(piece.place);
  impl_->records.erase(id);
}

ExtentStore::RequestId ExtentStore::write(ExtentId id, const std::byte* data,
                                          std::int64_t priority) {
  Record& extent = impl_->record(id);
  HYDRA_CHECK(extent.requests == 0, extent.label + " is written while it is being moved");
  extent.written = false;
  return impl_->start(id, true, const_cast<std::byte*>(data), priority);
}

ExtentStore::RequestId ExtentStore::read(ExtentId id, std::byte* data, std::int64_t priority) {
  const Record& extent = impl_->record(id);
  HYDRA_CHECK(extent.written, extent.label + " is read before it has been written");
  return impl_->start(id, false, data, priority);
}

void ExtentStore::finish(const Done& done) {
  const auto found = impl_->requests.find(done.request);
  HYDRA_CHECK(found != impl_->requests.end(), "no such request: " + std::to_string(done.request));
  const Pending pending = std::move(found->second);
  impl_->requests.erase(found);
  Record& extent = impl_->record(pending.extent);
  --extent.requests;
  if (pending.shared->write) extent.written = done.failure == nullptr;
  const ExtentStoreOptions& options = impl_->options;
  if (options.trace == nullptr || options.clock == nullptr || !options.trace->enabled()) return;
  TraceEvent event;
  event.track = pending.shared->write ? "host to storage" : "storage to host";
  event.category = "io";
  event.name = extent.label;
  event.start = pending.shared->begun;
  event.duration = options.clock->now() - event.start;
  event.arguments = {{"bytes", std::to_string(extent.size.count())}};
  options.trace->record(std::move(event));
}

void ExtentStore::set_priority(RequestId request, std::int64_t priority) {
  const auto found = impl_->requests.find(request);
  if (found == impl_->requests.end()) return;
  if (found->second.shared->priority.exchange(priority) == priority) return;
  for (Drive& drive : impl_->drives) drive.queue->reorder();
}

Bytes ExtentStore::size(ExtentId extent) const { return impl_->record(extent).size; }

Bytes ExtentStore::capacity() const { return impl_->capacity(); }

Bytes ExtentStore::used() const { return impl_->used(); }

IoStats ExtentStore::stats(bool write) const {
  IoStats total;
  double depth_seconds = 0;
  for (const Drive& drive : impl_->drives) {
    const IoStats own = drive.queue->stats(write);
    total.bytes += own.bytes;
    total.busy = std::max(total.busy, own.busy);
    depth_seconds += own.mean_depth * seconds(own.busy);
  }
  if (total.busy > Nanoseconds(0)) total.mean_depth = depth_seconds / seconds(total.busy);
  return total;
}

std::vector<DriveStats> ExtentStore::drive_stats() const {
  std::vector<DriveStats> all;
  for (const Drive& drive : impl_->drives) all.push_back(drive.queue->stats());
  return all;
}

std::string ExtentStore::backend() const {
  return std::string(impl_->drives.front().queue->backend());
}

void ExtentStore::close() noexcept {
  for (Drive& drive : impl_->drives) drive.queue->close();
}

}  // namespace hydra
