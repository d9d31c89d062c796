#pragma once

#include <map>
#include <span>
#include <string>

#include "strategies/storage/storage.h"
#include "strategies/torch_checkpointing/index.h"

namespace dckpt {

/// The files of items by rank, as told by their names:
///
///     model_3.pt, config_3.json, …     ITEM_RANK.SUFFIX
///     blobs/3.bin                      ITEM/RANK.SUFFIX
///     rank_3/model.safetensors         rank_RANK/ITEM.SUFFIX
///
/// Other files are not items.
using ItemFiles = std::map<std::string, std::map<int, ItemFile>>;

ItemFiles find_item_files(const Storage& storage);

/// Returns whether the files of a directory can be those of a checkpoint: there is an item of rank
/// 0, as torch.save writes it.
bool has_item_files(std::span<const FileInfo> entries);

}  // namespace dckpt
