#include "operations/inspect/explain.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "migration/maps/mapped_reader.h"
#include "operations/inspect/rank_of_file.h"

namespace dckpt {
namespace {

/// Returns the number of pieces along each axis, if the chunks are the cells of a grid.
std::optional<Shape> grid_of(const TensorStorageMetadata& tensor) {
  std::vector<std::set<std::pair<std::int64_t, std::int64_t>>> pieces(tensor.size.size());
  for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
    for (std::size_t axis = 0; axis < pieces.size(); ++axis)
      pieces[axis].emplace(tensor.chunks.offsets(chunk)[axis], tensor.chunks.sizes(chunk)[axis]);
  }
  Shape grid;
  for (const auto& axis : pieces) grid.push_back(static_cast<std::int64_t>(axis.size()));
  const auto cells = checked_numel(grid);
  if (!cells || *cells != static_cast<std::int64_t>(tensor.chunks.size())) return std::nullopt;
  return grid;
}

void add_files(Explanation& explanation) {
  std::map<std::string, FileShare> files;
  for (const ChunkSummary& chunk : explanation.chunks) {
    FileShare& share = files[chunk.file];
    share.file = chunk.file;
    share.rank = rank_of_file(chunk.file);
    ++share.chunks;
    share.bytes += chunk.length;
  }
  for (auto& [name, share] : files) explanation.files.push_back(std::move(share));
  std::ranges::stable_sort(explanation.files, {},
                           [](const FileShare& share) { return share.rank.value_or(-1); });
}

/// Returns the module of a key: "decoder.layers.mlp.linear_fc1.weight" and
/// "decoder.layers.mlp.linear_fc1._extra_state/shard_0_2" have the same one.
std::string_view module_of(std::string_view key) {
  const std::size_t dot = key.substr(0, key.find('/')).rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

void add_related(const Metadata& metadata, Explanation& explanation) {
  const OptimizerStateKey own = parse_optimizer_state_key(explanation.key);
  const std::string_view model = own.model_key.empty() ? explanation.key : own.model_key;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (tensor.key == explanation.key) continue;
    const OptimizerStateKey state = parse_optimizer_state_key(tensor.key);
    if (tensor.key == model)
      explanation.related.push_back({"model tensor", tensor.key});
    else if (state.model_key == model)
      explanation.related.push_back({std::string(state.name), tensor.key});
  }
  for (const BytesStorageMetadata& object : metadata.objects) {
    if (!is_extra_state(object.key) || object.key == explanation.key) continue;
    if (!module_of(model).empty() && module_of(object.key) == module_of(model))
      explanation.related.push_back({"extra state", object.key});
  }
}

[[noreturn]] void fail_unknown(const Metadata& metadata, std::string_view key) {
  std::vector<std::string> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.push_back(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) keys.push_back(object.key);
  std::vector<std::string> similar;
  for (const std::string& candidate : keys) {
    if (candidate.find(key) != std::string::npos) similar.push_back(candidate);
  }
  if (similar.empty()) {
    if (auto close = nearest(key, keys)) similar.push_back(*std::move(close));
  }
  throw_error(ErrorCode::kInvalidArgument, "there is no tensor or object {}{}",
              quote(std::string(key)),
              similar.empty() ? "; dckpt inspect lists them"
                              : "; did you mean " + quoted_list(similar, 5) + "?");
}

}  // namespace

Explanation explain(const CheckpointReader& reader, std::string_view key) try {
  const Metadata& metadata = reader.metadata();
  Explanation explanation{.key = std::string(key)};
  if (const TensorStorageMetadata* const tensor = metadata.find_tensor(key)) {
    explanation.dtype = tensor->properties.dtype;
    explanation.shape = tensor->global_shape();
    explanation.bytes = tensor->nbytes();
    explanation.flattened = tensor->flattened_shape.has_value();
    explanation.stored_shape = tensor->size;
    explanation.grid = grid_of(*tensor);
    for (std::size_t i = 0; i < tensor->chunks.size(); ++i) {
      const StorageInfo& place = tensor->places[i];
      explanation.chunks.push_back(
          {tensor->chunks[i], metadata.files[place.file], place.offset, place.length});
    }
    std::ranges::sort(explanation.chunks, [](const ChunkSummary& a, const ChunkSummary& b) {
      return std::ranges::lexicographical_compare(a.box.offsets, b.box.offsets);
    });
  } else if (const BytesStorageMetadata* const object = metadata.find_object(key)) {
    explanation.is_object = true;
    explanation.bytes = object->place.length;
    explanation.chunks.push_back(
        {{}, metadata.files.at(object->place.file), object->place.offset, object->place.length});
  } else {
    fail_unknown(metadata, key);
  }
  add_files(explanation);
  add_related(metadata, explanation);
  return explanation;
} catch (...) {
  throw_checkpoint_error();
}

Explanation explain(const Location& location, const OpenOptions& options,
                    std::string_view key) try {
  // Also refuses settings without a map.
  if (options.map.name.empty()) return explain(*open_checkpoint(location, options), key);
  OpenOptions stored = options;
  stored.map = {};
  auto source = open_checkpoint(location, stored);
  const bool is_stored = source->metadata().find_tensor(key) != nullptr ||
                         source->metadata().find_object(key) != nullptr;
  Explanation explanation = explain(is_stored ? *source : *open_checkpoint(location, options), key);
  explanation.rule = rule_for(std::move(source), options.map, explanation.key);
  return explanation;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
