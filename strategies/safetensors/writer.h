#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "configs/policy/options.h"
#include "mapping/base/enum_names.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// The base of the files' names: "model.safetensors", or PEFT's "adapter_model.safetensors", of
/// which there is only one, whatever its size.
enum class SafetensorsNames : std::uint8_t { kModel, kAdapter };
inline constexpr EnumNames<SafetensorsNames, 2> kSafetensorsNamesNames{{
    {SafetensorsNames::kModel, "model"},
    {SafetensorsNames::kAdapter, "adapter"},
}};

/// Options of the save strategies safetensors and hf.
struct SafetensorsOptions {
  /// The limit of a file's size in bytes, which only a single larger tensor exceeds. The default is
  /// that of transformers.
  std::uint64_t max_file_size = 5'000'000'000;
  SafetensorsNames names = SafetensorsNames::kModel;
  /// The entries of each file's `__metadata__` besides "format".
  std::vector<std::pair<std::string, std::string>> metadata{};
  WriteOptions io{};  ///< not one of the strategy's own options
};

/// Writes a rank's plan, whose tensors must be whole, as safetensors files of `directory`. Tensors
/// go to files in the order of the plan. In a file they are ordered by descending size of their
/// elements, then by key, as in the reference implementation. The files have temporary names that
/// no other rank uses, since their final names count the files of all ranks. Throws CheckpointError
/// (unsupported) for what the format cannot hold, before anything is written.
WrittenItems write_safetensors(Storage& storage, const std::string& directory, int rank,
                               const SavePlan& plan, ItemSource& source,
                               const SafetensorsOptions& options);

/// Returns what write_safetensors() would return, without writing.
WrittenItems measure_safetensors_files(int rank, const SavePlan& plan,
                                       const SafetensorsOptions& options);

/// Gives the files of all ranks their final names, "model.safetensors" or
/// "model-00001-of-00005.safetensors".
void name_safetensors(Storage& storage, const std::string& directory, const Metadata& metadata,
                      SafetensorsNames names = SafetensorsNames::kModel);

/// Returns the file that is written last: the index of several files, or the one file of a
/// checkpoint without tensors; none for one file that has its final name. Files that are not
/// `renamed` always have an index.
std::optional<MarkerFile> safetensors_marker(const Metadata& metadata, bool renamed,
                                             SafetensorsNames names = SafetensorsNames::kModel);

}  // namespace dckpt
