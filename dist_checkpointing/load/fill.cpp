#include "dist_checkpointing/load/fill.h"

#include <algorithm>
#include <cstring>

#include "mapping/geometry/strided_copy.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/parallel/parallel_read.h"

namespace dckpt {
namespace {

void fill_zero(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  if (tensor.is_contiguous()) {
    std::memset(tensor.data(), 0, tensor.nbytes());
    return;
  }
  const Tensor zeros = Tensor::zeros(tensor.dtype(), tensor.shape());
  strided_copy(tensor.shape(), item_size(tensor.dtype()), zeros.data(), {0, zeros.strides()}, tensor.data(), {0, tensor.strides()});
}

bool shares(const LoadOptions& options, const Communicator& comm) { return options.parallel.enabled && comm.size() > 1; }

}  // namespace

ReadStats fill_destinations(const CheckpointReader& reader, const TensorRequest& request, const LoadOptions& options, Communicator& comm, LoadPlanner* planner) {
  const ReadOptions reading{.threads = options.threads, .staging = options.staging};
  ReadStats stats;
  agree(comm, "preparing the tensors", [&] { std::for_each(request.to_zero.begin(), request.to_zero.end(), fill_zero); });
  if (shares(options, comm)) {
    stats = read_tensors_together(reader, request.items, request.destinations, options.parallel.exchange, comm, reading, planner);
  } else {
    Heartbeat(comm).agree("reading tensors", [&] { stats = read_tensors(reader, request.items, request.destinations, reading); });
  }
  agree(comm, "padding the tensors", [&] { std::for_each(request.to_pad.begin(), request.to_pad.end(), replicate); });
  return stats;
}

std::unordered_map<std::uint32_t, Value> fetch_objects(const CheckpointReader& reader, std::span<const std::uint32_t> objects, const LoadOptions& options, Communicator& comm) {
  if (shares(options, comm)) return read_objects_together(reader, objects, options.parallel.exchange, comm, options.staging);
  std::unordered_map<std::uint32_t, Value> values;
  Heartbeat(comm).agree("reading objects", [&] {
    for (const std::uint32_t object : objects) values[object] = reader.object(object);
  });
  return values;
}

}  // namespace dckpt
