#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "configs/options.h"
#include "mapping/base/enum_names.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// What the files are named after: "model.safetensors", or PEFT's "adapter_model.safetensors", of
/// which there is only one, whatever its size.
enum class SafetensorsNames : std::uint8_t { kModel, kAdapter };
inline constexpr EnumNames<SafetensorsNames, 2> kSafetensorsNamesNames{{
    {SafetensorsNames::kModel, "model"},
    {SafetensorsNames::kAdapter, "adapter"},
}};

/// Options of the save strategies safetensors and hf.
struct SafetensorsOptions {
  /// No file gets larger than this, unless a single tensor is; what transformers uses.
  std::uint64_t max_file_size = 5'000'000'000;
  SafetensorsNames names = SafetensorsNames::kModel;
  /// What each file's `__metadata__` says besides "format".
  std::vector<std::pair<std::string, std::string>> metadata{};
};

/// Writes a rank's plan, whose tensors must be whole, as safetensors files of `directory`: tensors
/// go to files in the order of the plan, and in a file larger elements come first, then keys are in
/// order, as in the reference's. The files have names that no other rank uses, but not yet their
/// own, which count the files of all ranks. Throws CheckpointError (unsupported) for what the
/// format cannot hold, before anything is written.
WrittenItems write_safetensors(Storage& storage, const std::string& directory, int rank,
                               const SavePlan& plan, ItemSource& source, const WriteOptions& io,
                               const SafetensorsOptions& options);

/// What write_safetensors would return, without writing.
WrittenItems measure_safetensors_files(int rank, const SavePlan& plan,
                                       const SafetensorsOptions& options);

/// Gives the files of all ranks their names, which are "model.safetensors" or
/// "model-00001-of-00005.safetensors".
void name_safetensors(Storage& storage, const std::string& directory, const Metadata& metadata,
                      SafetensorsNames names = SafetensorsNames::kModel);

/// What is written last: the index of several files, or the one file of a checkpoint without
/// tensors; none for one file that has its name. Files that are not `renamed` have an index always.
std::optional<MarkerFile> safetensors_marker(const Metadata& metadata, bool renamed,
                                             SafetensorsNames names = SafetensorsNames::kModel);

}  // namespace dckpt
