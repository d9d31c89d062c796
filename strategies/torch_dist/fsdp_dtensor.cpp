#include "strategies/torch_dist/fsdp_dtensor.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/megatron/run_args.h"

namespace dckpt {
namespace {

constexpr std::string_view kModel = "model.module.";
constexpr std::string_view kGroups = "optimizer.param_to_group_meta.";
constexpr std::string_view kRng = "rng_state.(";
constexpr std::string_view kLayers = ".decoder.layers.";

/// Returns the decimal number at the beginning of a text.
std::optional<std::uint64_t> leading_number(std::string_view text) {
  return parse_u64(text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size())));
}

/// Returns the layer in a key that begins with `prefix`.
std::optional<std::uint64_t> layer_of(std::string_view key, std::string_view prefix) {
  const std::size_t found = key.find(kLayers);
  if (!key.starts_with(prefix) || found == std::string_view::npos) return std::nullopt;
  return leading_number(key.substr(found + kLayers.size()));
}

/// Returns the number of layers that keys with this prefix belong to: one more than the last, so
/// that gaps do not matter.
std::uint64_t count_layers(const Metadata& metadata, std::string_view prefix = kModel) {
  std::uint64_t count = 0;
  const auto see = [&](std::string_view key) {
    if (const auto layer = layer_of(key, prefix)) count = std::max(count, *layer + 1);
  };
  for (const TensorStorageMetadata& tensor : metadata.tensors) see(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) see(object.key);
  return count;
}

/// Returns the rank in "__5_0.distcp".
std::optional<std::uint64_t> rank_of(std::string_view file) {
  const std::size_t at = file.rfind("__");
  return at == file.npos ? std::nullopt : leading_number(file.substr(at + 2));
}

/// The division of layers and ranks among pipeline stages.
struct Stages {
  std::uint64_t count = 0;
  std::uint64_t layers = 0;  ///< layers of each stage
  std::uint64_t ranks = 0;   ///< ranks of each stage
};

Stages stages_of(const Value* args) {
  const auto refuse = [](const std::string& why) {
    return CheckpointError(ErrorCode::kUnsupported,
                           str_format("layers of pipeline stages cannot be renumbered: {}", why));
  };
  const auto number = [&](const char* name) {
    const auto found = run_arg(args, name);
    if (!found || *found < 1) throw refuse(str_format("args do not say {}", quote(name)));
    return static_cast<std::uint64_t>(*found);
  };
  std::vector<std::string> uneven = uneven_stages(args);
  if (run_arg(args, "virtual_pipeline_model_parallel_size"))
    uneven.emplace_back("virtual_pipeline_model_parallel_size");
  if (!uneven.empty()) throw refuse(str_format("by args, stages differ ({})", uneven.front()));
  const std::uint64_t layers = number("num_layers"), ranks = number("world_size");
  const std::uint64_t count = number("pipeline_model_parallel_size");
  if (layers % count != 0 || ranks % count != 0)
    throw refuse(str_format("{} {} and {}", counted(count, "stage has", "stages have"),
                            counted(layers, "layer"), counted(ranks, "rank")));
  return {count, layers / count, ranks / count};
}

}  // namespace

bool is_fsdp_dtensor(const Metadata& metadata) {
  const auto begins = [](std::string_view prefix) {
    return [prefix](const auto& entry) { return entry.key.starts_with(prefix); };
  };
  return std::ranges::any_of(metadata.tensors, begins(kModel)) &&
         (std::ranges::any_of(metadata.objects, begins(kGroups)) ||
          std::ranges::find(metadata.objects, "checkpoint_version", &BytesStorageMetadata::key) !=
              metadata.objects.end());
}

std::size_t count_pipeline_stages(const Metadata& metadata) {
  std::set<std::uint64_t> stages;
  const auto see = [&](std::string_view key) {
    if (!key.starts_with(kRng)) return;
    if (const auto stage = leading_number(key.substr(kRng.size()))) stages.insert(*stage);
  };
  for (const TensorStorageMetadata& tensor : metadata.tensors) see(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) see(object.key);
  return stages.size();
}

void renumber_layers(Metadata& metadata, const Value& args) {
  const Stages stages = stages_of(as_run_args(&args));
  std::unordered_map<std::string, std::string> names;
  const auto rename = [&](std::string& key, std::string_view prefix, std::uint64_t layer,
                          std::optional<std::uint64_t> rank) {
    if (!rank || *rank / stages.ranks >= stages.count || layer >= stages.layers)
      throw_error(ErrorCode::kUnsupported, {.key = key},
                  "the layer cannot be renumbered: its file does not say which pipeline "
                  "stage has written it, or no stage has so many layers");
    const std::size_t at = key.find(kLayers, prefix.size() - 1) + kLayers.size();
    std::string name = key;
    name.replace(at, key.find_first_not_of("0123456789", at) - at,
                 std::to_string(*rank / stages.ranks * stages.layers + layer));
    names.emplace(key, name);
    key = std::move(name);
  };
  const auto file = [&](const StorageInfo& place) -> std::string_view {
    return metadata.files.at(place.file);
  };
  for (const std::string_view prefix : {kModel, kOptimizerState, kGroups}) {
    if (count_layers(metadata, prefix) > stages.layers) continue;  // they have their numbers
    for (TensorStorageMetadata& tensor : metadata.tensors) {
      const auto layer = layer_of(tensor.key, prefix);
      if (!layer || tensor.places.empty()) continue;
      const auto rank = rank_of(file(tensor.places.front()));
      for (const StorageInfo& place : tensor.places) {
        const auto other = rank_of(file(place));
        if (rank && other && *other / stages.ranks != *rank / stages.ranks)
          throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                      "the layer cannot be renumbered: parts of it are of different "
                      "pipeline stages, which have overwritten each other's");
      }
      rename(tensor.key, prefix, *layer, rank);
    }
    for (BytesStorageMetadata& object : metadata.objects) {
      if (const auto layer = layer_of(object.key, prefix))
        rename(object.key, prefix, *layer, rank_of(file(object.place)));
    }
  }
  for (auto& [key, path] : metadata.paths) {
    const auto found = names.find(key);
    if (found == names.end()) continue;
    for (PathElement& step : path) {
      auto* const text = std::get_if<std::string>(&step);
      if (text == nullptr || key.find(*text) == key.npos || text->find(kLayers) == text->npos)
        continue;
      // The key has changed inside this step only.
      *text =
          found->second.substr(key.find(*text), text->size() + found->second.size() - key.size());
    }
    key = found->second;
  }
}

void check_layers(const Metadata& metadata, const Value& args) {
  const std::uint64_t found = count_layers(metadata);
  const auto expected = run_arg(as_run_args(&args), "num_layers");
  const std::size_t stages = count_pipeline_stages(metadata);
  if (stages < 2 || !expected || found == 0 || found >= static_cast<std::uint64_t>(*expected))
    return;
  throw_error(ErrorCode::kUnsupported,
              "the model has {}, but the checkpoint only {}, and {} pipeline stages have "
              "saved it: Megatron-FSDP has numbered the layers of each stage from 0, and the "
              "stages have overwritten each other's. The other layers are lost; to look at what "
              "is there, use a policy with load: {{backend: {{name: fsdp_dtensor, options: "
              "{{stage_local: keep}}}}}}, or renumber, which gives layers their numbers in the "
              "model (--policy FILE of dckpt inspect, verify, digest, explain, extract and "
              "convert)",
              counted(*expected, "layer"), found, stages);
}

}  // namespace dckpt
