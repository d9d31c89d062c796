#include "strategies/contract/made_chunk.h"

#include "mapping/base/checked.h"
#include "mapping/base/error.h"

namespace dckpt {

void MadeChunk::read(std::uint64_t offset, MutableByteView into) const {
  if (offset % item() != 0 || into.size() % item() != 0 || !range_fits(offset, into.size(), size()))
    throw_error(ErrorCode::kCorrupt, {.file = name(), .offset = offset},
                "a read goes past the elements of a tensor, or divides one");
  if (!into.empty()) make(static_cast<std::int64_t>(offset / item()), into);
}

void ChangedChunk::prefetch(std::uint64_t offset, std::uint64_t length) const {
  const Range range = bytes_of(offset / item(), length / item());
  elements().prefetch(stored_.offset + range.offset, range.length);
}

ChangedChunk::Range ChangedChunk::bytes_of(std::uint64_t first, std::uint64_t count) const {
  return {first * item_size(stored_.dtype), count * item_size(stored_.dtype)};
}

void ChangedChunk::read_stored(std::uint64_t offset, MutableByteView into) const {
  elements().read(stored_.offset + offset, into);
}

ChunkPayload payload_of(std::shared_ptr<const MadeChunk> made) {
  ChunkPayload payload{.dtype = made->dtype(), .strides = row_major_strides(made->box().sizes)};
  payload.decoded = std::move(made);
  return payload;
}

void require_row_major(const ChunkPayload& payload, const std::string& key) {
  if (payload.contiguous) return;
  throw_error(ErrorCode::kUnsupported, {.key = key},
              "tensors that are added to others have to lie row-major; convert the "
              "checkpoint once without that");
}

}  // namespace dckpt
