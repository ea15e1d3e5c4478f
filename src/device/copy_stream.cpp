#include "device/copy_stream.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "hydra/core/check.h"

namespace hydra {
namespace {
// Bounded by what the engine keeps in flight; a full queue makes the giver wait.
constexpr std::size_t kQueuedOperations = 1 << 16;
}  // namespace

void PendingCopies::add(const void* target, const void* source, Bytes bytes) {
  MutexLock lock(mutex_);
  for (const void* begin : {target, source}) {
    ranges_.push_back({static_cast<const std::byte*>(begin), bytes.size()});
  }
}

void PendingCopies::remove(const void* target, const void* source, Bytes bytes) {
  MutexLock lock(mutex_);
  for (const void* begin : {target, source}) {
    const Range range{static_cast<const std::byte*>(begin), bytes.size()};
    ranges_.erase(std::find(ranges_.begin(), ranges_.end(), range));
  }
}

bool PendingCopies::touch(const void* data, Bytes bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  MutexLock lock(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return range.begin < begin + bytes.size() && begin < range.begin + range.size;
  });
}

CopyStream::CopyStream(CopyStreamOptions options)
    : options_(std::move(options)), inbox_(kQueuedOperations) {
  if (options_.delay_seed) delays_.emplace(*options_.delay_seed);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw SystemError("cannot start the copy thread of " + options_.track + ": " + error.what());
  }
}

Event CopyStream::copy(void* target, const void* source, Bytes bytes, CopyNote note) {
  Event done = Event::pending();
  if (options_.pending != nullptr) options_.pending->add(target, source, bytes);
  give({Operation::Kind::kCopy, done, target, source, bytes, std::move(note)});
  return done;
}

Event CopyStream::record() {
  Event done = Event::pending();
  give({Operation::Kind::kRecord, done, nullptr, nullptr, Bytes(0), {}});
  return done;
}

void CopyStream::wait(const Event& event) {
  if (!event.fired()) give({Operation::Kind::kWait, event, nullptr, nullptr, Bytes(0), {}});
}

void CopyStream::give(Operation operation) {
  const bool accepted = inbox_.push(std::move(operation));
  HYDRA_CHECK(accepted, options_.track + " is closed");
}

void CopyStream::close() noexcept {
  inbox_.close();
  if (thread_.joinable()) thread_.join();
}

void CopyStream::run() {
  while (auto operation = inbox_.pop()) {
    switch (operation->kind) {
      case Operation::Kind::kCopy:
        perform_copy(*operation);
        break;
      case Operation::Kind::kRecord:
        operation->event.fire(nullptr);
        break;
      case Operation::Kind::kWait:
        try {
          operation->event.wait();
        } catch (...) {  // a wait orders; the failure is the waited-for operation's own
        }
        break;
    }
  }
}

void CopyStream::perform_copy(const Operation& copy) {
  stall();
  const auto start = std::chrono::steady_clock::now();
  const auto worked = [&] { return options_.worker ? options_.worker->total() : Nanoseconds(0); };
  const Nanoseconds worked_before = worked();
  const Nanoseconds traced_start = options_.clock ? options_.clock->now() : Nanoseconds(0);
  const bool fails = options_.failure != nullptr && options_.failure->due();
  if (!fails && copy.bytes > Bytes(0)) {
    std::memcpy(copy.target, copy.source, copy.bytes.size());
  }
  hold_link(start, copy.bytes);
  const Nanoseconds taken = std::chrono::steady_clock::now() - start;
  if (!fails) bytes_copied_ += copy.bytes.count();
  busy_ns_ += taken.count();
  hidden_ns_ += std::min(taken, worked() - worked_before).count();
  trace(copy, traced_start, taken);
  if (options_.pending != nullptr) {
    options_.pending->remove(copy.target, copy.source, copy.bytes);
  }
  copy.event.fire(fails ? std::make_exception_ptr(
                              DeviceError(true, "a copy of " + to_string(copy.bytes) + " on " +
                                                    options_.track + " failed: planted for a test"))
                        : nullptr);
}

void CopyStream::trace(const Operation& copy, Nanoseconds start, Nanoseconds taken) {
  if (options_.trace == nullptr || options_.clock == nullptr || !options_.trace->enabled()) return;
  TraceEvent event;
  event.track = options_.track;
  event.category = "copy";
  event.name = copy.note.name.empty() ? to_string(copy.bytes) : copy.note.name;
  event.start = start;
  if (copy.note.flow != 0) {
    options_.trace->record(
        flow_event(TraceEvent::Kind::kFlowStart, options_.track, start, copy.note.flow));
  }
  event.duration = taken;
  event.arguments = {{"bytes", std::to_string(copy.bytes.count())}};
  options_.trace->record(std::move(event));
}

void CopyStream::stall() {
  if (!delays_ || options_.largest_delay <= Nanoseconds(0)) return;
  std::this_thread::sleep_for(Nanoseconds(static_cast<std::int64_t>(
      delays_->below(static_cast<std::uint64_t>(options_.largest_delay.count())))));
}

// A throttled link is busy for latency + bytes / rate, counted from when it was free, so that
// sleeping too long once is made up for by the next copy.
void CopyStream::hold_link(std::chrono::steady_clock::time_point start, Bytes bytes) {
  if (options_.bytes_per_second <= 0 && options_.latency <= Nanoseconds(0)) return;
  Nanoseconds time = options_.latency;
  if (options_.bytes_per_second > 0) {
    time += Nanoseconds(static_cast<std::int64_t>(1e9 * static_cast<double>(bytes.count()) /
                                                  options_.bytes_per_second));
  }
  constexpr Nanoseconds kMadeUpFor = std::chrono::microseconds(200);
  link_free_ = std::max(link_free_, start - kMadeUpFor) + time;
  std::this_thread::sleep_until(link_free_);
}

}  // namespace hydra
