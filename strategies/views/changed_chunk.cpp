#include "strategies/views/changed_chunk.h"

#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"

namespace dckpt {

std::uint64_t ChangedChunk::size() const noexcept {
  return static_cast<std::uint64_t>(numel(box_.sizes)) * item();
}

void ChangedChunk::prefetch(std::uint64_t offset, std::uint64_t length) const {
  elements().prefetch(stored_.offset + offset, length);
}

void ChangedChunk::read(std::uint64_t offset, MutableByteView into) const {
  if (offset % item() != 0 || into.size() % item() != 0 || !range_fits(offset, into.size(), size()))
    throw CheckpointError(ErrorCode::kCorrupt,
                          "a read goes past the elements of a tensor, or divides one",
                          {.file = name(), .offset = offset});
  elements().read(stored_.offset + offset, into);
  if (!into.empty()) change(static_cast<std::int64_t>(offset / item()), into);
}

ChunkPayload payload_of(std::shared_ptr<const ChangedChunk> decoded, DType dtype, const Box& box) {
  ChunkPayload payload{.offset = 0, .dtype = dtype, .strides = row_major_strides(box.sizes)};
  payload.decoded = std::move(decoded);
  return payload;
}

void require_row_major(const ChunkPayload& payload, const std::string& key) {
  if (payload.contiguous) return;
  throw CheckpointError(ErrorCode::kUnsupported,
                        "tensors that are added to others have to lie row-major; convert the "
                        "checkpoint once without that",
                        {.key = key});
}

}  // namespace dckpt
