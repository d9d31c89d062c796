#pragma once

#include "mapping/planning/load/read_plan.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Where the elements of the item's chunk are in `file`, which is the chunk's, or a window on it. A
/// reader may be anybody's: throws CheckpointError (corrupt) for bytes outside the chunk's place,
/// and what CheckpointReader::locate throws.
ChunkPayload locate_chunk(const CheckpointReader& reader, const ReadItem& item,
                          const ReadableFile& file);

/// The same elements of a chunk that does not lie row-major, addressed as they lie in the file,
/// axes with large strides first. Throws CheckpointError (unsupported) for a flattened tensor.
ReadItem as_stored(const TensorStorageMetadata& tensor, const ReadItem& item,
                   const ChunkPayload& payload);

}  // namespace dckpt
