#include "dist_checkpointing/load/stored_keys.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "mapping/state/sharded_object.h"

namespace dckpt {
namespace {

constexpr std::string_view kGrid = "/shard_";

}  // namespace

std::string renamed_object(const KeyRenamer& renamed, const std::string& unique_key) {
  const std::size_t grid = std::min(unique_key.rfind(kGrid), unique_key.size());
  return renamed(std::string_view(unique_key).substr(0, grid)) + unique_key.substr(grid);
}

StoredKeys::StoredKeys(const Metadata& metadata, std::span<const RenameRule> rules,
                       const LostData& lost) {
  const KeyRenamer renamed(rules);
  ProblemList ambiguous;
  const auto add = [&](Index& index, std::string name, std::uint32_t i, const auto& entries) {
    const auto [found, inserted] = index.try_emplace(std::move(name), i);
    const std::string& first = entries[found->second].key;
    if (inserted || first == entries[i].key) return;
    ambiguous.add(str_format("{} and {} both become {}", quote(first), quote(entries[i].key),
                             quote(found->first)));
  };
  std::set<std::uint32_t> lost_tensors;
  for (const LostData::Tensor& tensor : lost.tensors) lost_tensors.insert(tensor.number);
  const std::set<std::uint32_t> lost_objects(lost.objects.begin(), lost.objects.end());
  tensors_.reserve(metadata.tensors.size());
  for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i) {
    if (!lost_tensors.contains(i))
      add(tensors_, renamed(metadata.tensors[i].key), i, metadata.tensors);
  }
  for (std::uint32_t i = 0; i < metadata.objects.size(); ++i) {
    if (lost_objects.contains(i)) continue;
    const std::string& stored = metadata.objects[i].key;
    const std::string name = renamed_object(renamed, stored);
    const std::string key = name.substr(0, name.rfind(kGrid));
    auto& grids = grids_[key];
    if (const auto cell = ShardedObject::parse_unique_key(stored)) {
      grids.insert(cell->global_shape);
      cells_[key].emplace_back(cell->global_shape, cell->global_offset, i);
    }
    add(objects_, name, i, metadata.objects);
  }
  ambiguous.raise_if_any(ErrorCode::kMismatch,
                         "the rules of load.rename give several stored keys the same name:");
}

const std::set<Shape>* StoredKeys::grids(const std::string& key) const {
  const auto found = grids_.find(key);
  return found == grids_.end() ? nullptr : &found->second;
}

std::vector<std::uint32_t> StoredKeys::cells(const std::string& key) const {
  const auto found = cells_.find(key);
  if (found == cells_.end()) return {};
  std::vector<Cell> sorted = found->second;
  std::ranges::sort(sorted);
  std::vector<std::uint32_t> positions;
  for (const auto& [grid, place, position] : sorted) positions.push_back(position);
  return positions;
}

std::set<std::string> StoredKeys::names() const {
  std::set<std::string> names;
  for (const auto& [name, index] : tensors_) names.insert(name);
  for (const auto& [name, index] : objects_) names.insert(name);
  return names;
}

std::set<std::string> StoredKeys::keys() const {
  std::set<std::string> keys;
  for (const auto& [key, grids] : grids_) keys.insert(key);
  for (const auto& [key, index] : tensors_) keys.insert(key);
  return keys;
}

std::optional<std::uint32_t> StoredKeys::position(const Index& index, const std::string& key) {
  const auto found = index.find(key);
  if (found == index.end()) return std::nullopt;
  return found->second;
}

}  // namespace dckpt
