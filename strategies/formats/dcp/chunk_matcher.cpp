#include "strategies/formats/dcp/chunk_matcher.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/base/format.h"

namespace dckpt::dcp {

ChunkMatcher::ChunkMatcher(TensorStorageMetadata& tensor) : tensor_(&tensor) {
  tensor.places.assign(tensor.chunks.size(), StorageInfo{kNowhere, 0, 0});
}

bool ChunkMatcher::take(std::size_t chunk, ShapeView offsets, const StorageInfo& place) {
  if (chunk >= tensor_->chunks.size() || !is_free(chunk) ||
      !equal(tensor_->chunks.offsets(chunk), offsets))
    return false;
  tensor_->places[chunk] = place;
  ++placed_;
  next_ = chunk + 1;
  prefetch(next_ + 1);
  return true;
}

/// Prefetches a chunk. Records mostly come rank by rank, with all tensors of one after the other,
/// so that no cache holds a tensor until its next record.
void ChunkMatcher::prefetch(std::size_t chunk) const noexcept {
  if (chunk >= tensor_->chunks.size()) return;
  __builtin_prefetch(tensor_->chunks.offsets(chunk).data());
  __builtin_prefetch(&tensor_->places[chunk], 1);
}

/// Returns the row-major position of an offset. It wraps around, and offsets of empty chunks may
/// share one with others: good for ordering only.
std::uint64_t ChunkMatcher::position(ShapeView offsets) const noexcept {
  std::uint64_t position = 0;
  for (std::size_t axis = 0; axis < offsets.size(); ++axis)
    position +=
        static_cast<std::uint64_t>(offsets[axis]) * static_cast<std::uint64_t>(strides_[axis]);
  return position;
}

void ChunkMatcher::sort() {
  if (!order_.empty()) return;
  const BoxList& chunks = tensor_->chunks;
  strides_ = row_major_strides(tensor_->size);
  order_.reserve(chunks.size());
  for (std::uint32_t chunk = 0; chunk < chunks.size(); ++chunk)
    order_.push_back({position(chunks.offsets(chunk)), chunk});
  const auto before = [&](const Slot& a, const Slot& b) {
    if (a.position != b.position) return a.position < b.position;
    return std::ranges::lexicographical_compare(chunks.offsets(a.chunk), chunks.offsets(b.chunk));
  };
  if (!std::is_sorted(order_.begin(), order_.end(), before))
    std::sort(order_.begin(), order_.end(), before);
}

void ChunkMatcher::add(ShapeView offsets, std::optional<std::int64_t> hint,
                       const StorageInfo& place) {
  if (hint && take(static_cast<std::size_t>(*hint), offsets, place)) return;
  if (take(next_, offsets, place)) return;
  bool found = false;
  bool taken = false;
  if (offsets.size() == tensor_->chunks.dims()) {
    sort();
    auto slot = std::lower_bound(
        order_.begin(), order_.end(), position(offsets), [&](const Slot& at, std::uint64_t wanted) {
          if (at.position != wanted) return at.position < wanted;
          return std::ranges::lexicographical_compare(tensor_->chunks.offsets(at.chunk), offsets);
        });
    for (; slot != order_.end() && same(slot->chunk, offsets); ++slot) {
      found = true;
      taken |= take(slot->chunk, offsets, place);
    }
  }
  if (!found)
    throw CheckpointError(
        ErrorCode::kCorrupt,
        str_format("a storage record names a chunk at {}, where the tensor has none",
                   to_string(offsets)));
  if (!taken)
    throw CheckpointError(ErrorCode::kCorrupt,
                          "two storage records name the chunk at " + to_string(offsets));
}

void ChunkMatcher::finish() {
  if (placed_ == tensor_->chunks.size()) return;
  sort();
  for (auto run = order_.begin(); run != order_.end();) {
    const ShapeView offsets = tensor_->chunks.offsets(run->chunk);
    const auto end = std::find_if(run, order_.end(),
                                  [&](const Slot& slot) { return !same(slot.chunk, offsets); });
    const auto placed =
        std::find_if(run, end, [&](const Slot& slot) { return !is_free(slot.chunk); });
    if (placed == end) {
      throw CheckpointError(ErrorCode::kCorrupt,
                            str_format("no storage record says where chunk {} of the tensor is",
                                       to_string(tensor_->chunks[run->chunk])));
    }
    const StorageInfo place = tensor_->places[placed->chunk];
    std::for_each(run, end, [&](const Slot& slot) {
      if (is_free(slot.chunk)) tensor_->places[slot.chunk] = place;
    });
    run = end;
  }
}

}  // namespace dckpt::dcp
