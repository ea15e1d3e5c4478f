#include "engine/boundary.h"

#include "hydra/core/error.h"

namespace hydra {
namespace {
constexpr std::int64_t kAlignment = 64;
}

void BoundarySlot::describe(const std::vector<at::Tensor>& tensors,
                            const std::vector<bool>& differentiable) {
  entries_.clear();
  Bytes offset;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    Entry entry;
    entry.defined = tensor.defined();
    if (entry.defined) {
      entry.shape = tensor.sizes().vec();
      entry.type = tensor.scalar_type();
      entry.differentiable = i < differentiable.size() && differentiable[i];
      entry.offset = offset;
      entry.bytes = Bytes(static_cast<std::int64_t>(tensor.nbytes()));
      offset += entry.bytes.rounded_up(kAlignment);
    }
    entries_.push_back(std::move(entry));
  }
  if (offset > memory_.size()) {
    throw DataError("a micro-batch passes " + to_string(offset) +
                    " over a shard border, but the first batch needed only " +
                    to_string(memory_.size()) +
                    ": let the data source give its largest batch at step 0");
  }
}

Bytes slot_bytes(std::span<const BoundaryTensor> tensors, bool differentiable_only) {
  Bytes total;
  for (const BoundaryTensor& tensor : tensors) {
    if (differentiable_only && !tensor.differentiable) continue;
    total += tensor.bytes.rounded_up(kAlignment);
  }
  return total;
}

}  // namespace hydra
