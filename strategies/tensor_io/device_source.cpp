#include "strategies/tensor_io/device_source.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "mapping/base/error_boundary.h"
#include "mapping/geometry/flat_range.h"

namespace dckpt {
DeviceSource::DeviceSource(std::span<const Tensor> tensors) noexcept {
  try {
    streams_.add_devices_of(tensors);
  } catch (...) {
    failure_ = current_error();
  }
}

CopyStream& DeviceSource::stream_of(const Tensor& tensor) const {
  if (failure_) throw CheckpointError(*failure_);
  return streams_.of(tensor);
}

PendingCopies DeviceSource::copies_from(const Tensor& tensor) const {
  return PendingCopies(stream_of(tensor));
}

void DeviceSource::add(PendingCopies& copies, const Tensor& tensor, std::int64_t begin,
                       std::int64_t end, std::byte* to) {
  for (const FlatPiece& part : split_flat_range(tensor.shape(), begin, end)) {
    StridedView from{0, tensor.strides()};
    for (std::size_t axis = 0; axis < tensor.dim(); ++axis)
      from.offset += part.box.offsets[axis] * from.strides[axis];
    copies.to_host(part.box.sizes, item_size(tensor.dtype()), tensor.data(), from, to,
                   {part.begin - begin, row_major_strides(part.box.sizes)});
  }
}

void DeviceSource::read(const Tensor& tensor, std::int64_t begin, std::int64_t end,
                        const std::function<void(ByteView)>& sink) {
  CopyStream& stream = stream_of(tensor);
  if (begin == end) return;
  const std::size_t size = item_size(tensor.dtype());
  const auto step = static_cast<std::int64_t>(PageLockedPool::kPieceBytes / size);
  StagedPiece first(stream);
  const auto second = end - begin > step ? StagedPiece::extra(stream) : nullptr;
  const std::array<StagedPiece*, 2> ring{&first, second.get()};
  const std::int64_t in_flight = second ? 2 : 1;
  const auto start = [&](StagedPiece& piece, std::int64_t from, std::int64_t to) {
    add(piece.copies(), tensor, from, to, piece.memory());
    piece.enqueued();
  };
  for (std::int64_t k = 0; k < in_flight; ++k)
    start(*ring[k], begin + k * step, std::min(begin + (k + 1) * step, end));
  std::size_t turn = 0;
  for (std::int64_t at = begin; at < end; at += step) {
    StagedPiece& piece = *ring[turn];
    piece.wait();
    sink({piece.memory(), static_cast<std::size_t>(std::min(step, end - at)) * size});
    const std::int64_t next = at + in_flight * step;
    if (next < end) start(piece, next, std::min(next + step, end));
    turn = (turn + 1) % static_cast<std::size_t>(in_flight);
  }
}

}  // namespace dckpt
