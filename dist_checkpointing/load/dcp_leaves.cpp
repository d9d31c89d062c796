#include "dist_checkpointing/load/dcp_leaves.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_set>

namespace dckpt {
namespace {

bool begins_with_one_of(const KeyPath& path, const std::set<KeyPath>& prefixes) {
  KeyPath prefix;
  return std::any_of(path.begin(), path.end(), [&](const PathElement& element) {
    prefix.push_back(element);
    return prefixes.contains(prefix);
  });
}

}  // namespace

std::vector<FlatLeaf> leaves_as_stored(const Value& state, const StoredKeys& keys) {
  std::vector<FlatLeaf> leaves = flatten_state_dict(state);
  std::unordered_set<std::string_view> names;
  std::size_t stored = 0;
  for (const FlatLeaf& leaf : leaves) {
    names.insert(leaf.name);
    if (keys.contains(leaf.name)) ++stored;
  }
  if (stored == keys.size()) return leaves;  // no name is left that could be a container's

  std::vector<FlatLeaf> containers;
  std::set<KeyPath> opened;
  for (FlatLeaf& leaf : flatten_state_dict(state, FlattenRule::kTorch23)) {
    if (names.contains(leaf.name) || !keys.contains(leaf.name)) continue;
    opened.insert(leaf.path);
    containers.push_back(std::move(leaf));
  }
  if (containers.empty()) return leaves;
  names.clear();
  std::erase_if(leaves,
                [&](const FlatLeaf& leaf) { return begins_with_one_of(leaf.path, opened); });
  leaves.insert(leaves.end(), std::make_move_iterator(containers.begin()),
                std::make_move_iterator(containers.end()));
  return leaves;
}

}  // namespace dckpt
