#include "dist_checkpointing/save/key_paths.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "mapping/base/error.h"
#include "mapping/state/flatten.h"

namespace dckpt {
namespace {

/// The data of an item.
using Source = std::pair<WriteItem::Kind, std::uint32_t>;

Source source_of(const LocalShard& shard) {
  if (const auto* const tensor = std::get_if<TensorShard>(&shard))
    return {WriteItem::Kind::kTensor, tensor->source};
  return {WriteItem::Kind::kObject, std::get<ObjectShard>(shard).source};
}

const std::string& key_of(const LocalShard& shard) {
  const auto* const tensor = std::get_if<TensorShard>(&shard);
  return tensor != nullptr ? tensor->key : std::get<ObjectShard>(shard).key;
}

/// Returns the path of a leaf under a new key: the steps at the beginning and at the end that the
/// key still has, and the rest of the key as one step between them.
KeyPath path_of_renamed(const KeyPath& path, std::string key) {
  std::vector<std::string> names;
  for (const PathElement& step : path) names.push_back(dotted_name(KeyPath{step}));
  std::size_t first = 0;  // steps that stay at the beginning
  while (first + 1 < path.size() && key.starts_with(names[first] + "."))
    key.erase(0, names[first++].size() + 1);
  std::size_t last = path.size();  // the first step that stays at the end
  while (last > first + 1 && key.ends_with("." + names[last - 1]))
    key.erase(key.size() - names[--last].size() - 1);
  KeyPath renamed(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(first));
  if (last == first + 1 && key == names[first])
    renamed.push_back(path[first]);
  else
    renamed.emplace_back(std::move(key));
  renamed.insert(renamed.end(), path.begin() + static_cast<std::ptrdiff_t>(last), path.end());
  return renamed;
}

/// Throws CheckpointError (mismatch) if two keys have one path, or, with `of_several_ranks`, one
/// rank has a value where another has a dict or list with items: no state dict holds both.
void require_one_tree(const KeyPaths& paths, bool of_several_ranks) {
  std::vector<const KeyPaths::value_type*> sorted;
  sorted.reserve(paths.size());
  for (const auto& entry : paths) sorted.push_back(&entry);
  std::ranges::sort(sorted, [](const auto* a, const auto* b) { return a->second < b->second; });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const KeyPath& outer = sorted[i - 1]->second;
    const KeyPath& inner = sorted[i]->second;
    if (outer == inner)
      throw_error(ErrorCode::kMismatch, {.key = sorted[i]->first},
                  "the keys {} and {} have one path, {}, and no load could put both into one "
                  "state dict; give one of them another name",
                  quote(sorted[i - 1]->first), quote(sorted[i]->first), quote(dotted_name(outer)));
    if (!of_several_ranks || inner.size() <= outer.size() ||
        !std::equal(outer.begin(), outer.end(), inner.begin()))
      continue;
    throw_error(ErrorCode::kMismatch, {.key = dotted_name(outer)},
                "one rank has a value at {} and another a dict or list with {}, and no load "
                "could put both into one state dict; give one of them another name",
                quote(dotted_name(outer)), quote(dotted_name(inner)));
  }
}

}  // namespace

KeyPaths with_planned_keys(const KeyPaths& paths, const SavePlan& items,
                           std::span<const LocalShard> shards) {
  if (paths.empty()) return {};
  std::map<Source, std::set<std::string_view>> of_source;
  for (const WriteItem& item : items) of_source[{item.kind, item.source}].insert(item.key);
  std::unordered_map<std::string_view, std::set<std::string_view>> planned;  // by own key
  for (const LocalShard& shard : shards) planned[key_of(shard)].merge(of_source[source_of(shard)]);
  KeyPaths all;
  for (const auto& [key, path] : paths) {
    const auto found = planned.find(key);
    if (found == planned.end()) {
      all.emplace_back(key, path);
      continue;
    }
    for (const std::string_view stored : found->second)
      all.emplace_back(stored, stored == key ? path : path_of_renamed(path, std::string(stored)));
  }
  return all;
}

KeyPaths paths_of(const SavePlan& items, const KeyPaths& paths) {
  std::unordered_set<std::string_view> keys;
  for (const WriteItem& item : items) keys.insert(item.key);
  KeyPaths written;
  for (const auto& entry : paths) {
    if (keys.contains(entry.first)) written.push_back(entry);
  }
  return written;
}

void add_paths(Metadata& metadata, const std::vector<KeyPaths>& of_ranks) {
  const std::size_t of_rank_0 = metadata.paths.size();
  std::unordered_set<std::string_view> open;
  for (const TensorStorageMetadata& tensor : metadata.tensors) open.insert(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) open.insert(object.key);
  for (const auto& [key, path] : metadata.paths) open.erase(key);
  for (const KeyPaths& paths : of_ranks) {
    for (const auto& [key, path] : paths) {
      if (open.erase(key) != 0) metadata.paths.emplace_back(key, path);
    }
  }
  require_one_tree(metadata.paths, metadata.paths.size() != of_rank_0);
}

void sort_paths(Metadata& metadata, std::span<const GlobalPlan::Slot> order) {
  std::unordered_map<std::string_view, std::size_t> position;
  for (const GlobalPlan::Slot& slot : order)
    position.emplace(
        slot.is_object ? metadata.objects[slot.entry].key : metadata.tensors[slot.entry].key,
        position.size() + 1);
  std::ranges::stable_sort(metadata.paths, {}, [&](const auto& entry) {
    const auto found = position.find(entry.first);
    return found == position.end() ? 0 : found->second;
  });
}

}  // namespace dckpt
