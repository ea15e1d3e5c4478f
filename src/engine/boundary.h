#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/device/device.h"
#include "hydra/memory/host_arena.h"
#include "hydra/model/pilot.h"

namespace hydra {

/// The tensors that pass one shard border for one micro-batch, in host memory.
///
/// Written by the unit that emits them, read by the units that take them in once they have arrived:
/// a reader may be at work on earlier micro-batches meanwhile. The coordinator lets nobody read
/// what is to be written anew.
class BoundarySlot {
 public:
  /// What one tensor of the border is at this micro-batch.
  struct Entry {
    std::vector<std::int64_t> shape;
    c10::ScalarType type = c10::ScalarType::Float;
    Bytes offset;
    Bytes bytes;
    bool defined = false;
    bool differentiable = false;
  };

  /// Takes memory for the worst micro-batch.
  explicit BoundarySlot(HostBuffer memory) : memory_(std::move(memory)) {}

  /// Plans the download of device tensors into the slot. Undefined tensors are kept as such.
  /// `differentiable` says which ones carry gradients; missing ones count as not.
  /// Errors: DataError when they are larger than the slot: a later batch outgrew the first.
  void describe(const std::vector<at::Tensor>& tensors, const std::vector<bool>& differentiable);
  const std::vector<Entry>& entries() const { return entries_; }
  /// Says that a unit will fill the slot, and returns what that unit fires once it has, or has
  /// failed.
  Event expect() { return arrived_ = Event::pending(); }
  /// Fires when the tensors are there, with the failure of the unit that was to bring them.
  const Event& arrived() const { return arrived_; }
  std::byte* data(const Entry& entry) const { return memory_.data() + entry.offset.size(); }

 private:
  HostBuffer memory_;
  std::vector<Entry> entries_;
  Event arrived_;
};

/// Returns what a slot for these tensors must hold.
Bytes slot_bytes(std::span<const BoundaryTensor> tensors, bool differentiable_only);

}  // namespace hydra
