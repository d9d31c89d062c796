#pragma once

#include <memory>
#include <optional>
#include <string>

#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Opens safetensors for reading: a model of Hugging Face, what DCP's HuggingFaceStorageWriter
/// wrote, or any other files of tensors. The storage's root is the folder:
///
///     model.safetensors.index.json             names the files, each with its keys, or there is
///                                              none and all files belong together
///     model-00001-of-00002.safetensors …       tensors, each whole in one file, or
///     shard-00001-model-00001-of-00002.safetensors …
///                                              DCP's, of several ranks: each with a part, and in
///                                              its `__metadata__` where the part belongs
///     config.json, tokenizer.json …            the model's, not read
///
/// Every tensor has a chunk for each file that holds some of it. There are no objects and no common
/// state: strings in `__metadata__` and config.json are neither. Files beside an index that it does
/// not name are not read.
///
/// `file` selects only this file, or the files of this index. Reads the headers, not the elements.
/// Throws CheckpointError: as find_model_files; as read_safetensors_header; (corrupt) if an index
/// and its files disagree, if files that DCP did not cut hold the same key, or if parts contradict
/// each other or overlap; (incomplete) if parts do not make up their tensor.
std::unique_ptr<CheckpointReader> open_safetensors(std::shared_ptr<const Storage> storage,
                                                   const std::optional<std::string>& file = {});

}  // namespace dckpt
