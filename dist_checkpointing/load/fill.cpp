#include "dist_checkpointing/load/fill.h"

#include "mapping/geometry/strided_copy.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

void fill_zero(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const Tensor zeros = Tensor::zeros(tensor.dtype(), tensor.shape());
  strided_copy(tensor.shape(), item_size(tensor.dtype()), zeros.data(), {0, zeros.strides()}, tensor.data(), {0, tensor.strides()});
}

}  // namespace

ReadStats fill_destinations(const CheckpointReader& reader, const TensorRequest& request, const LoadOptions& options, Communicator& comm) {
  ReadStats stats;
  agree(comm, "reading tensors", [&] {
    for (const Tensor& tensor : request.to_zero) fill_zero(tensor);
    stats = read_tensors(reader, request.items, request.destinations, {.threads = options.threads, .staging = options.staging});
  });
  for (const Replication& replication : request.to_pad) replicate(replication);
  return stats;
}

}  // namespace dckpt
