#include "dist_checkpointing/load/dcp_leaves.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>

#include "configs/policy/rename.h"

namespace dckpt {
namespace {

bool begins_with_one_of(const KeyPath& path, const std::set<KeyPath>& prefixes) {
  KeyPath prefix;
  return std::any_of(path.begin(), path.end(), [&](const PathElement& element) {
    prefix.push_back(element);
    return prefixes.contains(prefix);
  });
}

std::vector<FlatLeaf> leaves_of_torch(const Value& state, const StoredKeys& keys) {
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

/// Returns a stored path under the new name of its key. Elements at both ends that the rules leave
/// unchanged are kept, and so is an element that contains dots ("layer.weight"); the rest is split
/// at dots.
KeyPath renamed_path(const KeyPath& path, std::string_view name) {
  const auto text = [](const PathElement& element) { return dotted_name({element}); };
  auto begin = path.begin();
  auto end = path.end();
  for (; begin != end && name.starts_with(text(*begin) + "."); ++begin)
    name.remove_prefix(text(*begin).size() + 1);
  for (; begin != end && name.ends_with("." + text(end[-1])); --end)
    name.remove_suffix(text(end[-1]).size() + 1);
  KeyPath renamed(path.begin(), begin);
  const bool is_same = end - begin == 1 && name == text(*begin);
  const bool has_dots = end - begin == 1 && text(*begin).find('.') != std::string::npos;
  if (is_same || has_dots) {
    renamed.push_back(is_same ? *begin : PathElement(std::string(name)));
  } else {
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
      renamed.emplace_back(std::string(name.substr(0, dot)));
      name.remove_prefix(dot + 1);
    }
    renamed.emplace_back(std::string(name));
  }
  renamed.insert(renamed.end(), end, path.end());
  return renamed;
}

std::string root_of(const KeyPath& path) {
  return dotted_name({path.front()});
}

/// Returns the leaves of opened objects that the state has a place for, under the requested names,
/// without values.
std::vector<FlatLeaf> opened_leaves(const OpenedCheckpoint& from, const Value& state) {
  const std::vector<std::string>& keys = from.reader->info().opened_keys;
  const auto* const items = mapping_items(state);
  if (keys.empty() || items == nullptr) return {};
  const std::unordered_set<std::string> opened(keys.begin(), keys.end());
  std::unordered_set<std::string> wanted;
  for (const auto& [key, item] : *items) wanted.insert(key_text(key).value_or(""));
  const KeyRenamer renamed(from.options.rename);
  std::vector<FlatLeaf> leaves;
  for (const auto& [key, path] : from.metadata().paths) {
    if (!opened.contains(root_of(path))) continue;
    std::string name = renamed(key);
    if (!from.keys.contains(name)) name = renamed_object(renamed, key);
    KeyPath place = renamed_path(path, name);
    if (wanted.contains(root_of(place))) leaves.push_back({std::move(name), std::move(place), {}});
  }
  return leaves;
}

/// Returns whether a leaf belongs to the caller: it is filled or stays unchanged. Others can be
/// replaced.
bool is_kept(const FlatLeaf& leaf) {
  return leaf.value.is_sharded() || leaf.value.is(Value::Kind::kLocalNonpersistentObject);
}

/// Removes the roots of `stored` that contain no tensor.
void clear_roots(std::vector<FlatLeaf>& leaves, Value& state, const std::vector<FlatLeaf>& stored) {
  std::set<std::string> cleared;
  for (const FlatLeaf& leaf : stored) cleared.insert(root_of(leaf.path));
  for (const FlatLeaf& leaf : leaves) {
    if (leaf.value.is_tensor() || is_kept(leaf)) cleared.erase(root_of(leaf.path));
  }
  std::erase_if(leaves, [&](const FlatLeaf& leaf) { return cleared.contains(root_of(leaf.path)); });
  for (const std::string& root : cleared) replace_leaf(state, {root}, Value());
}

}  // namespace

std::string stored_name(const FlatLeaf& leaf) {
  if (leaf.value.is(Value::Kind::kShardedTensor)) return leaf.value.as_sharded_tensor().key;
  if (leaf.value.is(Value::Kind::kShardedObject))
    return leaf.value.as_sharded_object().unique_key();
  return leaf.name;
}

std::vector<FlatLeaf> leaves_as_stored(LoadCall& load, const OpenedCheckpoint& from, Value& state) {
  std::vector<FlatLeaf> leaves = leaves_of_torch(state, from.keys);
  std::vector<FlatLeaf> stored = opened_leaves(from, state);
  if (stored.empty()) return leaves;
  clear_roots(leaves, state, stored);

  std::unordered_set<std::string> requested;
  std::set<KeyPath> containers;
  std::map<KeyPath, bool> kept;  // by path of a leaf
  for (const FlatLeaf& leaf : leaves) {
    requested.insert(stored_name(leaf));
    kept.emplace(leaf.path, is_kept(leaf));
    for (KeyPath path = leaf.path; path.size() > 1;) {
      path.pop_back();
      containers.insert(path);
    }
  }
  std::set<KeyPath> replaced;
  for (FlatLeaf& leaf : stored) {
    if (requested.contains(leaf.name) || containers.contains(leaf.path)) continue;
    auto in_the_way = kept.end();
    for (KeyPath path = leaf.path; !path.empty() && in_the_way == kept.end(); path.pop_back())
      in_the_way = kept.find(path);
    if (in_the_way != kept.end()) {
      if (in_the_way->second) continue;
      if (replaced.insert(in_the_way->first).second)
        replace_leaf(state, in_the_way->first, Value());
    }
    leaves.push_back(std::move(leaf));
  }
  for (const FlatLeaf& leaf : leaves) {
    if (replaced.contains(leaf.path) && leaf.value.is_tensor() && leaf.value.as_tensor().has_data())
      load.report.replaced.push_back({leaf.name, "dict"});
  }
  std::erase_if(leaves, [&](const FlatLeaf& leaf) { return replaced.contains(leaf.path); });
  return leaves;
}

}  // namespace dckpt
