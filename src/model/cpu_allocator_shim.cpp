#include "hydra/model/cpu_allocator_shim.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "hydra/core/mutex.h"
#include "hydra/device/current_device.h"
#include "hydra/device/device.h"

namespace hydra {
namespace {

/// Which device an ATen allocation came from, by address, so that any thread can give it back:
/// ATen's raw interface (which convolutions use) leaves no room for an owner beside the pointer.
///
/// Cut into pieces by address, so that devices' workers do not wait for each other.
class AllocationTable {
 public:
  struct Owner {
    Device* device = nullptr;
    Bytes bytes;
  };

  void add(void* data, Owner owner) {
    Piece& piece = piece_of(data);
    MutexLock lock(piece.mutex);
    piece.owners.emplace(data, owner);
  }

  /// Returns an empty owner for memory that came from elsewhere.
  Owner take(void* data) {
    Piece& piece = piece_of(data);
    MutexLock lock(piece.mutex);
    const auto found = piece.owners.find(data);
    if (found == piece.owners.end()) return {};
    const Owner owner = found->second;
    piece.owners.erase(found);
    return owner;
  }

 private:
  struct Piece {
    Mutex mutex;
    std::unordered_map<void*, Owner> owners HYDRA_GUARDED_BY(mutex);
  };

  Piece& piece_of(void* data) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return pieces_[((address >> 6) ^ (address >> 14)) % pieces_.size()];
  }

  std::array<Piece, 64> pieces_;
};

class DeviceAwareAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    Device* device = current_device();
    if (device == nullptr || bytes == 0) return previous_->allocate(bytes);
    const Bytes size(static_cast<std::int64_t>(bytes));
    void* data = device->allocate(size);
    table_.add(data, {device, size});
    return {data, data, &free_anywhere, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_anywhere; }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  /// Never destroyed: tensors may die after static destruction has begun.
  static DeviceAwareAllocator& instance() {
    static auto& shim = *new DeviceAwareAllocator;
    return shim;
  }

 private:
  static void free_anywhere(void* data) {
    DeviceAwareAllocator& shim = instance();
    const AllocationTable::Owner owner = shim.table_.take(data);
    if (owner.device != nullptr) {
      owner.device->free(data, owner.bytes);
    } else {
      shim.previous_->raw_deallocate(data);
    }
  }

  c10::Allocator* previous_ = c10::GetCPUAllocator();
  AllocationTable table_;
};

}  // namespace

void install_cpu_allocator_shim() {
  static std::once_flag installed;
  std::call_once(installed, [] {
    constexpr std::uint8_t kAboveDefault = 1;
    c10::SetCPUAllocator(&DeviceAwareAllocator::instance(), kAboveDefault);
  });
}

}  // namespace hydra
