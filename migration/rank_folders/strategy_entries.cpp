#include "migration/rank_folders/strategy_entries.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "migration/rank_folders/join_ranks.h"
#include "migration/rank_folders/split_ranks.h"
#include "strategies/legacy_torch/foreign_file.h"
#include "strategies/legacy_torch/legacy_reader.h"
#include "strategies/legacy_torch/writer.h"
#include "strategies/safetensors/hub_cache.h"
#include "strategies/safetensors/model_files.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

/// Opens a model that torch.save wrote; with `index`, only the files that it names.
std::unique_ptr<CheckpointReader> open_model_of_torch(std::shared_ptr<const Storage> storage,
                                                      const std::optional<std::string>& index) {
  storage = with_hub_cache(std::move(storage));
  ModelFiles found = find_model_files(*storage, index, kTorchModelNames);
  TorchModelFiles model{std::move(found.files), std::move(found.index_file),
                        std::move(found.index.weight_map), adapter_files(*storage)};
  return open_torch_model(std::move(storage), model);
}

bool holds_rank_folder(std::span<const FileInfo> entries) {
  return std::ranges::any_of(entries,
                             [](const FileInfo& entry) { return is_rank_folder(entry.name); });
}

std::unique_ptr<SaveStrategy> make_rank_folders(const SaveOptions& options) {
  read_rank_folder_options(options.strategy);  // throws for mistakes before a conversion starts
  return make_rank_folder_strategy(options);
}

/// Shows a model as the files of rank folders.
View arrange_ranks(std::unique_ptr<CheckpointReader> model, const SaveOptions& options) {
  return split_ranks(std::move(model), read_rank_folder_options(options.strategy));
}

bool holds_torch_files(std::span<const FileInfo> found) {
  return holds_rank_folder(found) ||
         (holds_torch_model(found) &&
          std::ranges::find(found, kMetadataFile, &FileInfo::name) == found.end());
}

std::unique_ptr<CheckpointReader> open_torch_files(std::shared_ptr<Storage> storage,
                                                   const OpenHints& hints) {
  if (hints.file && hints.strategy.name == kAutoStrategy) {
    if (const std::string what = describe_foreign_file(*storage->open(*hints.file)); !what.empty())
      throw_error(ErrorCode::kUnsupported, what);
  }
  if (hints.file ? hints.file->ends_with(kTorchModelNames.index_suffix)
                 : !holds_rank_folder(storage->list("")))
    return open_model_of_torch(std::move(storage), hints.file);
  auto reader = open_legacy_torch(std::move(storage), hints.file);
  return reader->info().conventions.per_rank ? join_ranks(std::move(reader)) : std::move(reader);
}

}  // namespace

StrategyEntries rank_folder_strategies() {
  StrategyEntries entries;
  entries.save.push_back({.name = "torch",
                          .version = 1,
                          .about = "Megatron's oldest format, a folder per model-parallel rank "
                                   "(conversions only, without optimizer state)",
                          .capabilities = {.common_state = false,
                                           .cut_tensors = false,
                                           .resume = true,
                                           .marker = false},
                          .conventions = kRankFolderConventions,
                          .make = make_rank_folders,
                          .arrange = arrange_ranks,
                          .measure = measure_rank_folders});
  entries.load.push_back(
      {.name = "torch",
       .about = "Megatron's oldest format (mp_rank_*/model_optim_rng.pt), torch.save files, and "
                "models made of them",
       .capabilities = {.objects = false},
       .matches = holds_torch_files,
       .marks = {std::string(kTorchModelNames.usual_index)},
       .reads_file = [](const ReadableFile& file) { return !is_safetensors_file(file); },
       .open = open_torch_files});
  return entries;
}

}  // namespace dckpt
