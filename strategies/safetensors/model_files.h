#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strategies/formats/safetensors/index.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The files of an adapter in PEFT's layout, which may lie beside those of its base model.
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr const char* kTorchAdapterFile = "adapter_model.bin";
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";

/// The pattern of names that the files of a model have.
struct ModelNames {
  std::string_view prefix;
  std::string_view suffix;
  std::string_view index_suffix;
  std::string_view usual_index;
};
inline constexpr ModelNames kSafetensorsNames{"", kSafetensorsSuffix, kSafetensorsIndexSuffix,
                                              "model.safetensors.index.json"};
/// The names of models that torch.save wrote: "pytorch_model.bin",
/// "pytorch_model-00001-of-00002.bin".
inline constexpr ModelNames kTorchModelNames{"pytorch_model", ".bin", ".bin.index.json",
                                             "pytorch_model.bin.index.json"};

/// The files that make up a model.
struct ModelFiles {
  std::optional<std::string> index_file{};
  SafetensorsIndex index{};        ///< the index's content, if there is one
  std::vector<std::string> files;  ///< in order of their names
};

/// Finds the files of a model in a folder: those that its index names, or else all with names of
/// the pattern, without an adapter beside a model. `file` selects only this file, or those of this
/// index. Throws CheckpointError: (incomplete) for files that the index names or that their own
/// names count ("model-00001-of-00003.safetensors") but that are missing, with the keys in them;
/// (mismatch) if several indexes leave a choice; (corrupt).
ModelFiles find_model_files(const Storage& storage, const std::optional<std::string>& file,
                            const ModelNames& names = kSafetensorsNames);

/// Returns the files of an adapter in a folder.
std::vector<std::string> adapter_files(const Storage& folder);

/// Returns whether a file has the name of safetensors or of their index, or begins as safetensors
/// do.
bool is_safetensors_file(const ReadableFile& file);
/// Returns whether a folder's entries look like safetensors. Folders that hold other checkpoints'
/// metadata beside safetensors do not.
bool holds_safetensors(std::span<const FileInfo> entries);
/// Returns whether a folder holds a model that torch.save wrote, and none in safetensors.
bool holds_torch_model(std::span<const FileInfo> entries);

}  // namespace dckpt
