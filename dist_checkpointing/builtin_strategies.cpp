#include "dist_checkpointing/builtin_strategies.h"

#include <algorithm>
#include <cstdint>

#include "configs/schema.h"
#include "configs/strategy_options.h"
#include "migration/rank_folders/join_ranks.h"
#include "migration/rank_folders/split_ranks.h"
#include "strategies/legacy_torch/legacy_reader.h"
#include "strategies/legacy_torch/writer.h"
#include "strategies/local/local_reader.h"
#include "strategies/safetensors/hub_cache.h"
#include "strategies/safetensors/model_files.h"
#include "strategies/safetensors/safetensors_reader.h"
#include "strategies/safetensors/save_strategy.h"
#include "strategies/torch_checkpointing/reader.h"
#include "strategies/torch_dist/reader.h"
#include "strategies/torch_dist/save_strategy.h"
#include "strategies/zarr/writer.h"
#include "strategies/zarr/zarr_reader.h"

namespace dckpt {
namespace {

constexpr const char* kFsdpStrategy = "fsdp_dtensor";

/// Opens a model that torch.save wrote; with `index`, only the files that it names.
std::unique_ptr<CheckpointReader> open_model_of_torch(std::shared_ptr<const Storage> storage,
                                                      const std::optional<std::string>& index) {
  storage = with_hub_cache(std::move(storage));
  ModelFiles found = find_model_files(*storage, index, kTorchModelNames);
  return open_torch_model(std::move(storage), {std::move(found.files), std::move(found.index_file),
                                               std::move(found.index.weight_map)});
}

bool holds_rank_folder(std::span<const FileInfo> entries) {
  return std::ranges::any_of(entries,
                             [](const FileInfo& entry) { return is_rank_folder(entry.name); });
}

bool holds(std::span<const FileInfo> entries, std::string_view name) {
  return std::any_of(entries.begin(), entries.end(),
                     [&](const FileInfo& entry) { return entry.name == name; });
}

/// The options of torch_dist and dcp; fsdp_dtensor has one more.
TorchDistReadOptions read_dcp_options(const StrategySpec& strategy) {
  config::Schema<TorchDistReadOptions> schema{{config::field(
      "mixed_saves", &TorchDistReadOptions::mixed_saves, config::choice(kMixedSavesNames))}};
  if (strategy.name == kFsdpStrategy)
    schema.fields.push_back(config::field("stage_local", &TorchDistReadOptions::stage_local,
                                          config::choice(kStageLocalNames)));
  return read_options(schema, strategy, kLoadBackendOptions);
}

std::unique_ptr<CheckpointReader> open_dcp(std::shared_ptr<Storage> storage,
                                           const OpenHints& hints) {
  TorchDistReadOptions options = read_dcp_options(hints.strategy);
  options.recover_flattened_shapes = hints.recover_flattened_shapes;
  return open_torch_dist(std::move(storage), options);
}

std::unique_ptr<SaveStrategy> make_rank_folders(const SaveOptions& options) {
  read_rank_folder_options(options.strategy);  // throws for mistakes before a conversion starts
  return make_rank_folder_strategy(options);
}

/// Shows a model as the files of rank folders.
View arrange_ranks(std::unique_ptr<CheckpointReader> model, const SaveOptions& options) {
  return split_ranks(std::move(model), read_rank_folder_options(options.strategy));
}

SaveStrategyEntry hugging_face_entry(const char* name) {
  return {.name = name,
          .version = 1,
          .about = "safetensors as transformers loads them: tensors only, each whole",
          .capabilities = {.objects = false,
                           .common_state = false,
                           .cut_tensors = false,
                           .integrity = true,
                           .resume = true},
          .conventions = {.model_folder = true},
          .make = make_safetensors_save_strategy,
          .measure = measure_safetensors};
}

bool holds_torch_files(std::span<const FileInfo> found) {
  return holds_rank_folder(found) || (holds_torch_model(found) && !holds(found, kMetadataFile));
}

std::unique_ptr<CheckpointReader> open_torch_files(std::shared_ptr<Storage> storage,
                                                   const OpenHints& hints) {
  if (hints.file ? hints.file->ends_with(kTorchModelNames.index_suffix)
                 : !holds_rank_folder(storage->list("")))
    return open_model_of_torch(std::move(storage), hints.file);
  auto reader = open_legacy_torch(std::move(storage), hints.file);
  return reader->info().conventions.per_rank ? join_ranks(std::move(reader)) : std::move(reader);
}

}  // namespace

std::vector<SaveStrategyEntry> builtin_save_strategies() {
  std::vector<SaveStrategyEntry> entries;
  entries.push_back({.name = "torch_dist",
                     .version = 1,
                     .about = "Megatron-Core's distributed checkpoints",
                     .capabilities = {.flattened_form = true,
                                      .compat = true,
                                      .integrity = true,
                                      .resume = true,
                                      .separation_hint = true,
                                      .plans = KeepPlans::kFile},
                     .conventions = kTorchDistConventions,
                     .plain_dcp = "dcp",
                     .make = make_torch_dist_save_strategy,
                     .measure = measure_torch_dist});
  entries.push_back({.name = "dcp",
                     .version = 1,
                     .about = "plain PyTorch DCP directories",
                     .capabilities = {.common_state = false,
                                      .integrity = true,
                                      .resume = true,
                                      .separation_hint = true,
                                      .plans = KeepPlans::kFile},
                     .conventions = kDcpConventions,
                     .make = make_dcp_save_strategy,
                     .measure = measure_torch_dist});
  SaveStrategyEntry fsdp = entries.back();
  fsdp.name = "fsdp_dtensor";
  fsdp.about = "the same of Megatron-FSDP; convert makes its keys";
  fsdp.conventions.megatron_fsdp = true;
  fsdp.make = make_fsdp_save_strategy;
  entries.push_back(std::move(fsdp));
  for (const char* const name : {"hf", "safetensors"}) entries.push_back(hugging_face_entry(name));
  entries.push_back({.name = "zarr",
                     .version = 1,
                     .about = "Megatron-Core's zarr backend (up to 0.15)",
                     .capabilities = {.equal_chunks = true, .integrity = true, .resume = true},
                     .conventions = kZarrConventions,
                     .make = make_zarr_save_strategy,
                     .measure = measure_zarr});
  entries.push_back({.name = "torch",
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
  return entries;
}

std::vector<LoadStrategyEntry> builtin_load_strategies() {
  std::vector<LoadStrategyEntry> entries;
  entries.push_back({.name = "torch_dist",
                     .versions = {1},
                     .about = "Megatron-Core's distributed checkpoints (0.6 and newer)",
                     .capabilities = {.flattened_form = true, .integrity = true},
                     .check_options = read_dcp_options,
                     .open = open_dcp});
  entries.push_back({.name = "zarr",
                     .versions = {1},
                     .about = "Megatron-Core's zarr backend (up to 0.15)",
                     .open = [](std::shared_ptr<Storage> storage, const OpenHints&) {
                       return open_zarr(std::move(storage));
                     }});
  entries.push_back(
      {.name = "torch",
       .about = "Megatron's oldest format (mp_rank_*/model_optim_rng.pt), torch.save files, and "
                "models made of them",
       .capabilities = {.objects = false},
       .matches = holds_torch_files,
       .open = open_torch_files});
  entries.push_back({.name = "local",
                     .about = "Megatron's local non-persistent checkpoints (RANK/iter_*_local.pt)",
                     .matches = may_be_local_checkpoint,
                     .holds = is_local_checkpoint,
                     .holds_iterations = true,
                     .open = [](std::shared_ptr<Storage> storage, const OpenHints& hints) {
                       return open_local(std::move(storage), hints.iteration);
                     }});
  entries.push_back({.name = "torch_checkpointing",
                     .about =
                         "torch_checkpointing directories (metadata.pkl, one file per item and "
                         "rank)",
                     .capabilities = {.common_state = false},
                     .matches = is_torch_checkpointing,
                     .open = [](std::shared_ptr<Storage> storage, const OpenHints&) {
                       return open_torch_checkpointing(std::move(storage));
                     }});
  entries.push_back(
      {.name = "dcp",
       .about = "plain PyTorch DCP directories, torch_dcp",
       .capabilities = {.common_state = false},
       .matches = [](std::span<const FileInfo> found) { return holds(found, kMetadataFile); },
       .check_options = read_dcp_options,
       .open = open_dcp});
  LoadStrategyEntry fsdp = entries.back();
  fsdp.name = "fsdp_dtensor";
  fsdp.about = "the same of Megatron-FSDP, whose keys convert makes and reads";
  entries.push_back(std::move(fsdp));
  entries.push_back(
      {.name = "safetensors",
       .about = "models of Hugging Face, PyTorch DCP's HuggingFaceStorageWriter, single files",
       .capabilities = {.objects = false, .common_state = false},
       .matches = holds_safetensors,
       .open = [](std::shared_ptr<Storage> storage, const OpenHints& hints) {
         return open_safetensors(std::move(storage), hints.file);
       }});
  return entries;
}

}  // namespace dckpt
