#pragma once

#include "mapping/planning/load/read_plan.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Locates the elements of the item's chunk in `file`, which is the chunk's file or a window on it.
/// Does not trust the reader: throws CheckpointError (corrupt) for bytes outside the chunk's place,
/// and what CheckpointReader::locate throws.
ChunkPayload locate_chunk(const CheckpointReader& reader, const ReadItem& item,
                          const ReadableFile& file);

/// Returns the same elements of a chunk that is not row-major, addressed as they are stored in the
/// file, axes with large strides first. Throws CheckpointError (unsupported) for a flattened
/// tensor.
ReadItem as_stored(const TensorStorageMetadata& tensor, const ReadItem& item,
                   const ChunkPayload& payload);

}  // namespace dckpt
