#include "strategies/tensor_io/state_source.h"

#include <algorithm>

#include "mapping/geometry/flat_range.h"
#include "mapping/geometry/strided_copy.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kPieceBytes =
    std::uint64_t{4} << 20;  // stays in the cache between copying, hashing and writing

}  // namespace

void StateSource::add(PendingCopies& copies, const WriteItem& item, std::uint64_t begin,
                      std::uint64_t end, std::byte* to) const {
  const Tensor& tensor = tensors_[item.source];
  const std::size_t size = item_size(tensor.dtype());
  DeviceSource::add(copies, tensor, item.source_begin + static_cast<std::int64_t>(begin / size),
                    item.source_begin + static_cast<std::int64_t>(end / size), to);
}

void StateSource::read(const WriteItem& item, std::uint64_t begin, std::uint64_t end,
                       const std::function<void(ByteView)>& sink) {
  const Tensor& tensor = tensors_[item.source];
  const std::size_t size = item_size(tensor.dtype());
  const auto first = item.source_begin + static_cast<std::int64_t>(begin / size);
  const auto last = item.source_begin + static_cast<std::int64_t>(end / size);
  if (tensor.device().kind != Device::Kind::kCpu) return devices_.read(tensor, first, last, sink);
  const auto step = static_cast<std::int64_t>(kPieceBytes / size);
  const bool contiguous = tensor.is_contiguous();
  Bytes gathered(contiguous ? 0 : static_cast<std::size_t>(std::min(step, last - first)) * size);
  for (std::int64_t at = first; at < last; at += step) {
    const std::int64_t count = std::min(step, last - at);
    if (contiguous) {
      sink({tensor.data() + static_cast<std::size_t>(at) * size,
            static_cast<std::size_t>(count) * size});
      continue;
    }
    for (const FlatPiece& piece : split_flat_range(tensor.shape(), at, at + count)) {
      StridedView from{0, tensor.strides()};
      for (std::size_t axis = 0; axis < tensor.dim(); ++axis)
        from.offset += piece.box.offsets[axis] * from.strides[axis];
      strided_copy(piece.box.sizes, size, tensor.data(), from, gathered.data(),
                   {piece.begin - at, row_major_strides(piece.box.sizes)});
    }
    sink({gathered.data(), static_cast<std::size_t>(count) * size});
  }
}

}  // namespace dckpt
