#include "strategies/comm/device_exchange.h"

#include <numeric>

#include "mapping/geometry/flat_range.h"

namespace dckpt {

std::uint64_t length_of(std::span<const MessagePart> parts) noexcept {
  return std::accumulate(
      parts.begin(), parts.end(), std::uint64_t{0},
      [](std::uint64_t sum, const MessagePart& part) { return sum + part.bytes; });
}

void for_each_rows(const DeviceBox& box, std::uint64_t begin, std::uint64_t length,
                   const std::function<void(const PitchedRows& rows)>& visit) {
  // The bytes of an element are one more axis, since a message may be cut inside an element.
  const auto item = static_cast<std::int64_t>(box.item_size);
  Shape sizes = box.sizes;
  Shape strides = box.view.strides;
  for (std::int64_t& stride : strides) stride *= item;
  sizes.push_back(item);
  strides.push_back(1);
  const auto first = static_cast<std::int64_t>(begin);
  for (const FlatPiece& piece :
       split_flat_range(sizes, first, first + static_cast<std::int64_t>(length))) {
    StridedView in_tensor{box.view.offset * item, strides};
    for (std::size_t axis = 0; axis < strides.size(); ++axis)
      in_tensor.offset += piece.box.offsets[axis] * strides[axis];
    const StridedView in_message{piece.begin - first, row_major_strides(piece.box.sizes)};
    for_each_rows(plan_runs(piece.box.sizes, in_tensor, in_message), visit);
  }
}

}  // namespace dckpt
