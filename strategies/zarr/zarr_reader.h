#pragma once

#include <memory>

#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

inline constexpr Conventions kZarrConventions{
    .objects_in_lists = false, .fragments_lost = true, .megatron_keys = true};

/// Opens Megatron's zarr backend, version 1 (written up to 0.15), for reading. The storage's root
/// is the checkpoint:
///
///     metadata.json, common.pt
///     <tensor key>/.zarray, <tensor key>/0.1 …     one array per tensor, one file per chunk
///     <tensor key>.sync/                           locks of flattened tensors, ignored
///     <object key>/shard_0.1_1.8.pt                one file per cell of a ShardedObject, holding
///                                                  the value itself
///
/// Flattened tensors need no special care: their elements lie in the array of the original shape.
/// All descriptions, names and file sizes are checked here. Throws CheckpointError: (incomplete) if
/// a chunk, a description or common.pt is missing, also naming the file: where a chunk is missing
/// the values are undefined (fill_value null), which only an interrupted save leaves behind;
/// (corrupt), (unsupported) as read_zarray does.
std::unique_ptr<CheckpointReader> open_zarr(std::shared_ptr<const Storage> storage);

}  // namespace dckpt
