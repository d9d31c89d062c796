#include "strategies/tensor_io/state_source.h"

#include <algorithm>
#include <cstddef>

#include "mapping/base/error.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/geometry/strided_copy.h"

namespace dckpt {
namespace {

// Stays in the cache between copying, hashing and writing.
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

}  // namespace

/// Delivers the items in device memory from a sequence that copies them together.
class StateSource::InOrder final : public ItemSource {
 public:
  InOrder(StateSource& state, std::vector<const WriteItem*> on_devices,
          std::vector<DeviceRange> ranges)
      : state_(state),
        on_devices_(std::move(on_devices)),
        sequence_(state.devices_.in_order(std::move(ranges))) {}

  Bytes object(const WriteItem& item) override { return state_.object(item); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    if (item.nbytes == 0 || !state_.is_on_device(item)) return state_.tensor(item, sink);
    if (next_ == on_devices_.size() || on_devices_[next_] != &item)
      throw_error(ErrorCode::kInvalidArgument, {.key = item.key},
                  "the strategy asks for items in another order than it said");
    ++next_;
    sequence_.next(sink);
  }

 private:
  StateSource& state_;
  const std::vector<const WriteItem*> on_devices_;
  std::size_t next_ = 0;
  DeviceSequence sequence_;
};

std::unique_ptr<ItemSource> StateSource::in_order(const SavePlan& plan,
                                                  std::span<const std::size_t> items) {
  std::vector<const WriteItem*> on_devices;
  std::vector<DeviceRange> ranges;
  for (const std::size_t i : items) {
    const WriteItem& item = plan[i];
    if (item.kind != WriteItem::Kind::kTensor || item.nbytes == 0 || !is_on_device(item)) continue;
    on_devices.push_back(&item);
    ranges.push_back(range_of(item, 0, item.nbytes));
  }
  if (ranges.empty()) return nullptr;
  return std::make_unique<InOrder>(*this, std::move(on_devices), std::move(ranges));
}

DeviceRange StateSource::range_of(const WriteItem& item, std::uint64_t begin,
                                  std::uint64_t end) const {
  const Tensor& tensor = tensors_[item.source];
  const std::size_t size = item_size(tensor.dtype());
  return {&tensor, item.source_begin + static_cast<std::int64_t>(begin / size),
          item.source_begin + static_cast<std::int64_t>(end / size)};
}

void StateSource::add(PendingCopies& copies, const WriteItem& item, std::uint64_t begin,
                      std::uint64_t end, std::byte* to) const {
  const DeviceRange range = range_of(item, begin, end);
  DeviceSource::add(copies, *range.tensor, range.begin, range.end, to);
}

void StateSource::read(const WriteItem& item, std::uint64_t begin, std::uint64_t end,
                       const std::function<void(ByteView)>& sink) {
  const auto [source, first, last] = range_of(item, begin, end);
  const Tensor& tensor = *source;
  const std::size_t size = item_size(tensor.dtype());
  if (is_on_device(item)) return devices_.read(tensor, first, last, sink);
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
