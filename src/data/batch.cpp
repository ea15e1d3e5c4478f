#include "hydra/data/batch.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <string>

#include "hydra/core/error.h"

namespace hydra {
namespace {

void require(bool holds, std::int64_t step, const std::string& what) {
  if (!holds) throw DataError("the batch of step " + std::to_string(step) + ": " + what);
}

void validate_tensor(at::Tensor& tensor, const std::string& name, const Batch& batch,
                     std::int64_t step) {
  require(tensor.defined(), step, name + " is undefined");
  require(tensor.device().is_cpu() && tensor.layout() == at::kStrided, step,
          name + " must be a dense tensor in host memory");
  require(tensor.dim() >= 1 && tensor.size(0) == batch.rows, step,
          name + " must have " + std::to_string(batch.rows) + " rows, has " +
              (tensor.dim() >= 1 ? std::to_string(tensor.size(0)) : "no dimension"));
  tensor = tensor.detach().contiguous();
}

}  // namespace

void validate_batch(Batch& batch, std::int64_t step) {
  require(batch.rows > 0, step, "has " + std::to_string(batch.rows) + " rows, needs at least 1");
  require(!batch.inputs.empty(), step, "has no input tensor");
  require(std::isfinite(batch.loss_denominator) && batch.loss_denominator > 0, step,
          "loss_denominator is " + std::to_string(batch.loss_denominator) + ", must be positive");
  for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
    validate_tensor(batch.inputs[i], "input " + std::to_string(i), batch, step);
  }
  for (auto& [name, tensor] : batch.side) {
    validate_tensor(tensor, "side input \"" + name + "\"", batch, step);
  }
}

Batch rows_of(const Batch& batch, std::int64_t begin, std::int64_t end) {
  Batch rows;
  rows.rows = end - begin;
  rows.loss_denominator = batch.loss_denominator;
  rows.tokens = batch.rows > 0 ? batch.tokens * rows.rows / batch.rows : 0;
  for (const at::Tensor& tensor : batch.inputs) {
    rows.inputs.push_back(tensor.narrow(0, begin, end - begin));
  }
  for (const auto& [name, tensor] : batch.side) {
    rows.side.emplace_back(name, tensor.narrow(0, begin, end - begin));
  }
  return rows;
}

Bytes batch_bytes(const Batch& batch) {
  Bytes total;
  for (const at::Tensor& tensor : batch.inputs) {
    total += Bytes(static_cast<std::int64_t>(tensor.nbytes()));
  }
  for (const auto& [name, tensor] : batch.side) {
    total += Bytes(static_cast<std::int64_t>(tensor.nbytes()));
  }
  return total;
}

}  // namespace hydra
