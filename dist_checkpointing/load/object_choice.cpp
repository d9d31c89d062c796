#include "dist_checkpointing/load/object_choice.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "dist_checkpointing/load/key_check.h"
#include "dist_checkpointing/planner/shard_spec.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/state/tree.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

WhenResharded rule_for(const ShardedObject& object, const OpenedCheckpoint& from) {
  return when_resharded(object, from.keys, from.options.objects).value_or(WhenResharded::kError);
}

/// Returns the action and the key as one text; ranks exchange sets of these.
std::string entry(WhenResharded done, const std::string& key) {
  return str_format("{} {}", name_of(kWhenReshardedNames, done), key);
}

/// Returns "…: 'rng_state' keep the values of this run; 'x' are taken out of the state".
Finding not_loaded(const KeySet& entries) {
  static const std::map<std::string_view, std::string> kPhrases{
      {"drop", "are taken out of the state"},
      {"keep", "keep the values of this run"},
      {"reinit", "become none"}};
  std::map<std::string_view, std::vector<std::string>> keys;
  for (const std::string& text : entries) {
    const std::string_view done = std::string_view(text).substr(0, text.find(' '));
    if (kPhrases.contains(done)) keys[done].push_back(text.substr(done.size() + 1));
  }
  std::string outcomes;
  std::vector<std::string> all;
  for (const auto& [done, of_these] : keys) {
    outcomes += str_format("{}{} {}", outcomes.empty() ? " " : "; ", quoted_list(of_these),
                           kPhrases.at(done));
    all.insert(all.end(), of_these.begin(), of_these.end());
  }
  return {FindingCode::kObjectsNotLoaded,
          "objects that were saved under another layout are not loaded (load.objects):" + outcomes,
          std::move(all)};
}

/// Requires a `tree` no deeper than map_leaves allows.
Value without_dropped(Value tree, const OpenedCheckpoint& from) {
  const auto is_dropped = [&](const Value& leaf) {
    return leaf.is(Value::Kind::kShardedObject) &&
           rule_for(leaf.as_sharded_object(), from) == WhenResharded::kDrop;
  };
  if (tree.is(Value::Kind::kDict)) {
    Dict rest;
    for (const auto& [key, item] : tree.as_dict()) {
      if (!is_dropped(item)) rest.set(key, without_dropped(item, from));
    }
    return Value(std::move(rest));
  }
  if (tree.is(Value::Kind::kList)) {
    for (Value& item : tree.mutable_items())
      item = is_dropped(item) ? Value() : without_dropped(std::move(item), from);
  }
  return tree;
}

}  // namespace

std::optional<WhenResharded> when_resharded(const ShardedObject& object, const StoredKeys& keys,
                                            const std::vector<ObjectRule>& rules) {
  const std::set<Shape>* const grids = keys.grids(object.key);
  if (grids == nullptr || grids->empty() || grids->contains(object.global_shape))
    return std::nullopt;
  const auto rule = std::ranges::find_if(
      rules, [&](const ObjectRule& each) { return glob_match(each.keys, object.key); });
  return rule == rules.end() ? WhenResharded::kError : rule->when_resharded;
}

Value ObjectCells::value(const std::unordered_map<std::uint32_t, Value>& read) const {
  if (!gathered) return read.at(positions.front());
  ValueList values;
  for (const std::uint32_t position : positions) values.push_back(read.at(position));
  return Value::list(std::move(values));
}

ObjectCells cells_of(const ShardedObject& object, const OpenedCheckpoint& from) {
  if (const auto own = from.keys.object(object.unique_key())) return {{*own}};
  if (is_gathered(object, from)) return {from.keys.cells(object.key), true};
  return {};
}

bool is_gathered(const ShardedObject& object, const OpenedCheckpoint& from) {
  return rule_for(object, from) == WhenResharded::kGather;
}

bool is_excused(const ShardedObject& object, const OpenedCheckpoint& from) {
  const WhenResharded rule = rule_for(object, from);
  return rule != WhenResharded::kError && rule != WhenResharded::kGather;
}

bool is_excused(const Value& leaf, const OpenedCheckpoint& from) {
  return leaf.is(Value::Kind::kShardedObject) && is_excused(leaf.as_sharded_object(), from);
}

void report_resharded(LoadCall& load, const OpenedCheckpoint& from, const Value& tree) {
  KeySet entries;
  agree(load.comm, "looking for objects of another layout", [&] {
    for (const ShardedObject* const object : collect_sharded(tree).objects) {
      const WhenResharded done = rule_for(*object, from);
      if (done == WhenResharded::kError) continue;
      load.report.resharded_objects.push_back({object->unique_key(), done});
      if (done != WhenResharded::kGather) entries.insert(entry(done, object->key));
    }
  });
  const KeySet all = united(entries, load.comm);
  if (!all.empty() && load.comm.rank() == 0) warn(load.report.findings, not_loaded(all));
}

Value apply_object_rules(Value tree, const LoadCall& load, const OpenedCheckpoint& from) {
  if (load.report.resharded_objects.empty()) return tree;
  tree = map_leaves(std::move(tree), [&](Value leaf) {
    if (!leaf.is(Value::Kind::kShardedObject)) return leaf;
    if (rule_for(leaf.as_sharded_object(), from) == WhenResharded::kReinit)
      leaf.mutable_sharded_object().data = Value();
    return leaf;
  });
  return without_dropped(std::move(tree), from);
}

}  // namespace dckpt
