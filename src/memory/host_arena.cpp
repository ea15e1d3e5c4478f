#include "hydra/memory/host_arena.h"

#include <utility>

#include "hydra/core/error.h"
#include "hydra/memory/page_pool.h"

namespace hydra {
namespace {

// Buffers are rounded to pages while reservations count bytes: room for the difference.
Bytes with_rounding(Bytes capacity) {
  return Bytes(capacity.count() + capacity.count() / 8) + Bytes(64 << 20);
}

}  // namespace

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, Bytes(0))),
      reservation_(std::move(other.reservation_)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::move(other.pool_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, Bytes(0));
    reservation_ = std::move(other.reservation_);
  }
  return *this;
}

void HostBuffer::release() noexcept {
  if (data_ != nullptr) pool_->free(data_, size_);
  data_ = nullptr;
  size_ = Bytes(0);
  pool_.reset();
  reservation_.release();
}

HostArena::HostArena(Bytes capacity) : pool_(std::make_shared<PagePool>(with_rounding(capacity))) {}

HostBuffer HostArena::allocate(Reservation reservation) {
  HostBuffer buffer;
  const Bytes size = reservation.bytes();
  std::byte* data = pool_->allocate(size);
  if (data == nullptr) {
    throw OutOfHostMemory("the host arena cannot hold another " + to_string(size) + " beside " +
                          to_string(pool_->stats().used) + " in use: raise host_memory");
  }
  buffer.pool_ = pool_;
  buffer.data_ = data;
  buffer.size_ = size;
  buffer.reservation_ = std::move(reservation);
  return buffer;
}

}  // namespace hydra
