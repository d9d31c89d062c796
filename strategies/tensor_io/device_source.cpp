#include "strategies/tensor_io/device_source.h"

#include <algorithm>

#include "mapping/base/error_boundary.h"
#include "mapping/geometry/flat_range.h"

namespace dckpt {
namespace {

constexpr std::size_t kRangeAlignment = 64;  // alignment of ranges in a piece

}  // namespace

DeviceSource::DeviceSource(std::span<const Tensor> tensors) noexcept {
  try {
    streams_.add_devices_of(tensors);
  } catch (...) {
    failure_ = current_error();
  }
}

const CopyStreams& DeviceSource::streams() const {
  if (failure_) throw CheckpointError(*failure_);
  return streams_;
}

PendingCopies DeviceSource::copies_from(const Tensor& tensor) const {
  return PendingCopies(streams().of(tensor));
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
                        const std::function<void(ByteView)>& sink) const {
  if (begin < end) in_order({{&tensor, begin, end}}).next(sink);
}

DeviceSequence DeviceSource::in_order(std::vector<DeviceRange> ranges) const {
  return {streams(), std::move(ranges)};
}

void DeviceSequence::next(const std::function<void(ByteView)>& sink) {
  const DeviceRange& range = ranges_[next_++];
  std::size_t left =
      static_cast<std::size_t>(range.end - range.begin) * item_size(range.tensor->dtype());
  while (left > 0) {
    if (ring_[turn_].piece == nullptr) begin();
    Slot& slot = ring_[turn_];
    if (slot.delivered == 0) slot.piece->wait();
    const Run run = slot.runs[slot.delivered++];
    sink({slot.piece->memory() + run.offset, run.nbytes});
    left -= run.nbytes;
    if (slot.delivered < slot.runs.size()) continue;
    fill(slot);
    if (ring_[1 - turn_].piece != nullptr) turn_ = 1 - turn_;
  }
}

/// Called when the ring is empty: before the first range, and before the first one of another
/// device.
void DeviceSequence::begin() {
  const Tensor& tensor = *ranges_[range_].tensor;
  CopyStream& stream = streams_.of(tensor);
  device_ = tensor.device();
  turn_ = 0;
  ring_[0].piece = std::make_unique<StagedPiece>(stream);
  fill(ring_[0]);
  if (!has_more()) return;
  ring_[1].piece = StagedPiece::extra(stream);
  if (ring_[1].piece != nullptr) fill(ring_[1]);
}

bool DeviceSequence::has_more() const {
  return range_ < ranges_.size() && ranges_[range_].tensor->device() == device_;
}

/// Enqueues copies of the next ranges that fit into the slot's piece; releases the piece if none is
/// left.
void DeviceSequence::fill(Slot& slot) {
  slot.runs.clear();
  slot.delivered = 0;
  std::size_t filled = 0;
  while (has_more()) {
    const DeviceRange& range = ranges_[range_];
    const std::size_t size = item_size(range.tensor->dtype());
    const std::int64_t begin = range.begin + copied_;
    const std::int64_t end =
        std::min(range.end,
                 begin + static_cast<std::int64_t>((PageLockedPool::kPieceBytes - filled) / size));
    if (begin == end) break;
    DeviceSource::add(slot.piece->copies(), *range.tensor, begin, end,
                      slot.piece->memory() + filled);
    const std::size_t nbytes = static_cast<std::size_t>(end - begin) * size;
    slot.runs.push_back({filled, nbytes});
    filled = std::min(PageLockedPool::kPieceBytes,
                      (filled + nbytes + kRangeAlignment - 1) / kRangeAlignment * kRangeAlignment);
    copied_ += end - begin;
    if (end < range.end) break;
    ++range_;
    copied_ = 0;
  }
  if (slot.runs.empty())
    slot.piece.reset();
  else
    slot.piece->enqueued();
}

}  // namespace dckpt
