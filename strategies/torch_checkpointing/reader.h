#pragma once

#include <memory>
#include <span>

#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Returns whether a directory looks like a checkpoint of torch_checkpointing.
bool is_torch_checkpointing(std::span<const FileInfo> entries);

/// Opens a checkpoint of torch_checkpointing: one file per item and rank, and metadata.pkl, which
/// says how the tensors of some items are cut.
///
/// Tensors are those that metadata.pkl describes, and DTensors, which describe themselves, of items
/// that metadata.pkl lacks. A tensor's key is the item and the path in it, joined by dots:
/// "model.layers.0.weight". Everything else is an object of the lowest rank: one for each leaf,
/// where dicts are opened, and lists and tuples that hold a dict, a list, a tuple or a tensor. A
/// tensor that nothing describes may differ between ranks, and so is an object, too.
///
/// Reads the pickles of the ranks whose tensors are needed, but not the tensors' bytes. Throws
/// CheckpointError: (incomplete) for the temporary directory of a save and for missing files;
/// (corrupt), (unsupported) as read_item_index and load_torch_file do, for a file that does not
/// hold what metadata.pkl says, and if two values have one key.
std::unique_ptr<CheckpointReader> open_torch_checkpointing(std::shared_ptr<const Storage> storage);

}  // namespace dckpt
