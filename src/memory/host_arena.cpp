#include "hydra/memory/host_arena.h"

#include <atomic>
#include <utility>

#include "hydra/core/error.h"
#include "hydra/memory/page_pool.h"

namespace hydra {
namespace {

// What bounds the pool is the arena's count of bytes.
constexpr Bytes kNoLimit(std::int64_t{1} << 60);

}  // namespace

/// The pages under an arena and its buffers, and how many bytes of them buffers have.
class HostPages {
 public:
  explicit HostPages(Bytes capacity)
      : capacity_(capacity), pool_(kNoLimit, {.most_held = capacity}) {}

  std::byte* allocate(Bytes size) {
    const std::int64_t before = bytes_.fetch_add(size.count());
    try {
      if (size > capacity_ - Bytes(before)) {
        throw OutOfHostMemory("the host arena cannot hold another " + to_string(size) + " beside " +
                              to_string(Bytes(before)) + " in use: raise host_memory");
      }
      return pool_.allocate(size);
    } catch (...) {
      bytes_ -= size.count();
      throw;
    }
  }

  void free(std::byte* data, Bytes size) noexcept {
    pool_.free(data, size);
    bytes_ -= size.count();
  }

  Bytes held() const {
    const PagePool::Stats stats = pool_.stats();
    return stats.used + stats.free_warm;
  }

 private:
  const Bytes capacity_;
  PagePool pool_;
  std::atomic<std::int64_t> bytes_{0};
};

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : pages_(std::move(other.pages_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, Bytes(0))),
      reservation_(std::move(other.reservation_)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this != &other) {
    release();
    pages_ = std::move(other.pages_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, Bytes(0));
    reservation_ = std::move(other.reservation_);
  }
  return *this;
}

void HostBuffer::release() noexcept {
  if (data_ != nullptr) pages_->free(data_, size_);
  data_ = nullptr;
  size_ = Bytes(0);
  pages_.reset();
  reservation_.release();
}

HostArena::HostArena(Bytes capacity) : pages_(std::make_shared<HostPages>(capacity)) {}

HostBuffer HostArena::allocate(Reservation reservation) {
  HostBuffer buffer;
  const Bytes size = reservation.bytes();
  buffer.data_ = pages_->allocate(size);
  buffer.pages_ = pages_;
  buffer.size_ = size;
  buffer.reservation_ = std::move(reservation);
  return buffer;
}

Bytes HostArena::held() const { return pages_->held(); }

}  // namespace hydra
