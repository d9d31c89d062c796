#include "strategies/torch_dist/strategy_entries.h"

#include <algorithm>
#include <utility>

#include "configs/policy/strategy_options.h"
#include "configs/yaml/schema.h"
#include "strategies/torch_dist/reader.h"
#include "strategies/torch_dist/save_strategy.h"

namespace dckpt {
namespace {

constexpr const char* kFsdpStrategy = "fsdp_dtensor";

bool holds_metadata(std::span<const FileInfo> entries) {
  return std::ranges::find(entries, kMetadataFile, &FileInfo::name) != entries.end();
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

}  // namespace

StrategyEntries torch_dist_strategies() {
  StrategyEntries entries;
  entries.save.push_back({.name = "torch_dist",
                          .version = 1,
                          .about = "Megatron-Core's distributed checkpoints",
                          .capabilities = {.flattened_form = true,
                                           .compat = true,
                                           .integrity = true,
                                           .resume = true,
                                           .separation_hint = true},
                          .conventions = kTorchDistConventions,
                          .plain_dcp = "dcp",
                          .make = make_torch_dist_save_strategy,
                          .measure = measure_torch_dist});
  entries.save.push_back({.name = "dcp",
                          .version = 1,
                          .about = "plain PyTorch DCP directories",
                          .capabilities = {.common_state = false,
                                           .integrity = true,
                                           .resume = true,
                                           .separation_hint = true},
                          .conventions = kDcpConventions,
                          .make = make_dcp_save_strategy,
                          .measure = measure_torch_dist});
  SaveStrategyEntry fsdp = entries.save.back();
  fsdp.name = "fsdp_dtensor";
  fsdp.about = "the same of Megatron-FSDP; convert makes its keys";
  fsdp.conventions.megatron_fsdp = true;
  fsdp.make = make_fsdp_save_strategy;
  entries.save.push_back(std::move(fsdp));
  entries.load.push_back({.name = "torch_dist",
                          .versions = {1},
                          .about = "Megatron-Core's distributed checkpoints (0.6 and newer)",
                          .capabilities = {.flattened_form = true, .integrity = true},
                          .check_options = read_dcp_options,
                          .open = open_dcp});
  entries.load.push_back({.name = "dcp",
                          .about = "plain PyTorch DCP directories, torch_dcp",
                          .capabilities = {.common_state = false},
                          .matches = holds_metadata,
                          .marks = {kMetadataFile},
                          .check_options = read_dcp_options,
                          .open = open_dcp});
  LoadStrategyEntry fsdp_reader = entries.load.back();
  fsdp_reader.name = "fsdp_dtensor";
  fsdp_reader.about = "the same of Megatron-FSDP, whose keys convert makes and reads";
  entries.load.push_back(std::move(fsdp_reader));
  return entries;
}

}  // namespace dckpt
