#include "strategies/tensor_io/device_destinations.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/parallel_for.h"

namespace dckpt {
namespace {

constexpr std::size_t kAlignment = 64;

struct Batch {
  const Tensor* device = nullptr;  ///< a tensor on the device
  std::vector<ReadItem> items;
};

/// Cuts an item along its outermost axes into boxes of at most `limit` elements.
void cut(const ReadItem& item, std::int64_t limit,
         const std::function<void(const ReadItem&)>& emit) {
  const std::int64_t elements = numel(item.sizes);
  if (elements <= limit) return emit(item);
  std::size_t axis = 0;
  while (item.sizes[axis] == 1) ++axis;
  const std::int64_t inner = elements / item.sizes[axis];
  const std::int64_t step = std::max<std::int64_t>(1, limit / inner);
  for (std::int64_t at = 0; at < item.sizes[axis]; at += step) {
    ReadItem part = item;
    part.sizes[axis] = std::min(step, item.sizes[axis] - at);
    part.source.offset += at * item.source.strides[axis];
    part.target.offset += at * item.target.strides[axis];
    part.offsets[axis] += at;
    cut(part, limit, emit);
  }
}

std::size_t rounded(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment);
}

std::size_t bytes_of(ShapeView box, const Tensor& tensor) {
  return static_cast<std::size_t>(numel(box)) * item_size(tensor.dtype());
}

/// Returns the bytes that an item takes in a piece of host memory.
std::size_t room_for(const ReadItem& item, const Tensor& destination) {
  return rounded(bytes_of(item.sizes, destination));
}

/// Packs the items, in their order, into batches that each fit into a piece.
std::vector<Batch> plan_batches(std::span<const ReadItem> items,
                                std::span<const Tensor> destinations) {
  std::vector<Batch> batches;
  std::size_t filled = 0;
  for (const ReadItem& item : items) {
    if (numel(item.sizes) == 0) continue;
    const Tensor& destination = destinations[item.destination];
    const auto limit =
        static_cast<std::int64_t>(PageLockedPool::kPieceBytes / item_size(destination.dtype()));
    cut(item, limit, [&](const ReadItem& part) {
      const std::size_t room = room_for(part, destination);
      if (batches.empty() || batches.back().device->device() != destination.device() ||
          filled + room > PageLockedPool::kPieceBytes) {
        batches.push_back({&destination, {}});
        filled = 0;
      }
      batches.back().items.push_back(part);
      filled += room;
    });
  }
  return batches;
}

/// Reads a batch into a piece, and enqueues the copies from there.
ReadStats fill(StagedPiece& piece, const Batch& batch, const CheckpointReader& reader,
               std::span<const Tensor> destinations, const ReadOptions& options) {
  std::vector<Tensor> staged;
  std::vector<ReadItem> items = batch.items;
  std::size_t at = 0;
  for (ReadItem& item : items) {
    const Tensor& destination = destinations[item.destination];
    const Shape strides = row_major_strides(item.sizes);
    staged.emplace_back(destination.dtype(), item.sizes, strides, piece.memory() + at, nullptr);
    at += room_for(item, destination);
    item.destination = static_cast<std::uint32_t>(staged.size() - 1);
    item.target = {0, strides};
  }
  const ReadStats stats = read_tensors(reader, items, staged, options);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ReadItem& wanted = batch.items[i];
    const Tensor& destination = destinations[wanted.destination];
    const std::size_t size = item_size(destination.dtype());
    const auto offset = (staged[i].data() - piece.memory()) / static_cast<std::ptrdiff_t>(size);
    piece.to_device(wanted.sizes, size, {offset, staged[i].strides()}, destination.mutable_data(),
                    wanted.target);
  }
  piece.enqueued();
  return stats;
}

}  // namespace

DeviceDestinations::DeviceDestinations(std::span<const Tensor> destinations) {
  streams_.add_devices_of(destinations);
}

ReadStats DeviceDestinations::read(const CheckpointReader& reader, std::span<const ReadItem> items,
                                   std::span<const Tensor> destinations,
                                   const ReadOptions& options) {
  const std::vector<Batch> batches = plan_batches(items, destinations);
  const auto threads = static_cast<std::size_t>(std::max(options.threads, 1));
  const std::size_t workers = std::min(threads, batches.size());
  std::mutex mutex;  // guards `total`
  ReadStats total;
  ReadOptions reading = options;
  reading.threads = 1;
  reading.staging = std::max<std::uint64_t>(options.staging / threads, 1);
  reading.progress = nullptr;
  reading.delivered = nullptr;
  std::atomic<std::size_t> next{0};
  parallel_for(workers, static_cast<int>(workers), [&](std::size_t) {
    // The pieces in the order of their copies. The oldest one is reused first.
    std::vector<std::unique_ptr<StagedPiece>> ring;
    std::size_t turn = 0;
    const CopyStream* in_use = nullptr;
    for (std::size_t i; (i = next++) < batches.size();) {
      const Batch& batch = batches[i];
      CopyStream& stream = streams_.of(*batch.device);
      if (in_use != &stream) {
        for (const auto& piece : ring) piece->wait();
        ring.clear();
        ring.push_back(std::make_unique<StagedPiece>(stream));
        if (auto more = StagedPiece::extra(stream)) ring.push_back(std::move(more));
        in_use = &stream;
      }
      StagedPiece& piece = *ring[turn++ % ring.size()];
      piece.wait();
      const ReadStats stats = fill(piece, batch, reader, destinations, reading);
      const std::lock_guard lock(mutex);
      total += stats;
      if (options.progress != nullptr) options.progress->add(stats.bytes_wanted);
    }
    for (const auto& piece : ring) piece->wait();
  });
  return total;
}

namespace {

/// Calls visit(part, dense) for boxes of at most `limit` elements. `dense` addresses the part as a
/// box of its own.
void for_each_box(
    ShapeView sizes, const StridedView& source, const StridedView& target, std::int64_t limit,
    const std::function<void(const ReadItem& part, const StridedView& dense)>& visit) {
  ReadItem whole;
  whole.sizes = Shape(sizes.begin(), sizes.end());
  whole.source = source;
  whole.target = target;
  whole.offsets = Shape(whole.sizes.size(), 0);
  if (numel(whole.sizes) == 0) return;
  cut(whole, limit, [&](const ReadItem& part) { visit(part, {0, row_major_strides(part.sizes)}); });
}

std::int64_t elements_of_piece(const Tensor& tensor) {
  return static_cast<std::int64_t>(PageLockedPool::kPieceBytes / item_size(tensor.dtype()));
}

}  // namespace

void DeviceDestinations::fill_zero(std::span<const Tensor> destinations) {
  std::optional<StagedPiece> zeros;
  const CopyStream* in_use = nullptr;
  const auto finish = [&] {
    if (!zeros) return;
    zeros->enqueued();
    zeros->wait();
    zeros.reset();
  };
  for (const Tensor& destination : destinations) {
    if (!is_in_device_memory(destination) || destination.numel() == 0) continue;
    CopyStream& stream = streams_.of(destination);
    if (in_use != &stream) {
      finish();
      zeros.emplace(stream);
      std::memset(zeros->memory(), 0, PageLockedPool::kPieceBytes);
      in_use = &stream;
    }
    for_each_box(destination.shape(), {0, row_major_strides(destination.shape())},
                 {0, destination.strides()}, elements_of_piece(destination),
                 [&](const ReadItem& part, const StridedView& dense) {
                   zeros->to_device(part.sizes, item_size(destination.dtype()), dense,
                                    destination.mutable_data(), part.target);
                 });
  }
  finish();
}

void BoxCopies::put(ShapeView sizes, const std::byte* from, const StridedView& from_view,
                    const Tensor& to, const StridedView& to_view) {
  const std::size_t size = item_size(to.dtype());
  if (!is_in_device_memory(to))
    return strided_copy(sizes, size, from, from_view, to.mutable_data(), to_view);
  for_each_box(sizes, from_view, to_view, elements_of_piece(to),
               [&](const ReadItem& part, const StridedView& dense) {
                 std::byte* const at = room(to, bytes_of(part.sizes, to));
                 strided_copy(part.sizes, size, from, part.source, at, dense);
                 piece_->copies().to_device(part.sizes, size, at, dense, to.mutable_data(),
                                            part.target);
               });
}

void BoxCopies::get(ShapeView sizes, const Tensor& from, const StridedView& from_view,
                    std::byte* to, const StridedView& to_view) {
  const std::size_t size = item_size(from.dtype());
  if (!is_in_device_memory(from))
    return strided_copy(sizes, size, from.data(), from_view, to, to_view);
  for_each_box(sizes, from_view, to_view, elements_of_piece(from),
               [&](const ReadItem& part, const StridedView& dense) {
                 std::byte* const at = room(from, bytes_of(part.sizes, from));
                 piece_->copies().to_host(part.sizes, size, from.data(), part.source, at, dense);
                 arrivals_.push_back({part.sizes, size, at, to, part.target});
               });
}

void BoxCopies::copy(ShapeView sizes, const Tensor& from, const StridedView& from_view,
                     const Tensor& to, const StridedView& to_view) {
  if (!is_in_device_memory(from)) return put(sizes, from.data(), from_view, to, to_view);
  if (!is_in_device_memory(to)) return get(sizes, from, from_view, to.mutable_data(), to_view);
  const std::size_t size = item_size(to.dtype());
  if (from.device() == to.device()) {
    room(to, 0);
    return piece_->copies().on_device(sizes, size, from.data(), from_view, to.mutable_data(),
                                      to_view);
  }
  Bytes host;
  for_each_box(sizes, from_view, to_view, elements_of_piece(from),
               [&](const ReadItem& part, const StridedView& dense) {
                 host.resize(bytes_of(part.sizes, from));
                 get(part.sizes, from, part.source, host.data(), dense);
                 finish();
                 put(part.sizes, host.data(), dense, to, part.target);
               });
}

void BoxCopies::finish() {
  if (!piece_) return;
  drain();
  piece_.reset();
}

std::byte* BoxCopies::room(const Tensor& tensor, std::size_t bytes) {
  CopyStream& stream = devices_->streams_.of(tensor);
  if (!piece_ || stream_ != &stream) {
    finish();
    piece_.emplace(stream);
    stream_ = &stream;
  } else if (bytes > PageLockedPool::kPieceBytes - filled_) {
    drain();
  }
  std::byte* const at = piece_->memory() + filled_;
  filled_ = std::min(PageLockedPool::kPieceBytes, filled_ + rounded(bytes));
  return at;
}

void BoxCopies::drain() {
  piece_->enqueued();
  piece_->wait();
  for (const Arrival& arrival : arrivals_) {
    strided_copy(arrival.sizes, arrival.item_size, arrival.from,
                 {0, row_major_strides(arrival.sizes)}, arrival.to, arrival.view);
  }
  arrivals_.clear();
  filled_ = 0;
}

}  // namespace dckpt
