#include "dist_checkpointing/load/object_choice.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "dist_checkpointing/load/key_check.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

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

WhenResharded rule_for(const ShardedObject& object, const OpenedCheckpoint& from) {
  return when_resharded(object, from.keys, from.options.objects).value_or(WhenResharded::kError);
}

void report_resharded(LoadCall& load, const OpenedCheckpoint& from,
                      std::span<const ShardedObject* const> objects) {
  KeySet entries;
  agree(load.comm, "looking for objects of another layout", [&] {
    for (const ShardedObject* const object : objects) {
      const WhenResharded done = rule_for(*object, from);
      if (done == WhenResharded::kError) continue;
      load.report.resharded_objects.push_back({object->unique_key(), done});
      if (done != WhenResharded::kGather) entries.insert(entry(done, object->key));
    }
  });
  const KeySet all = united(entries, load.comm);
  if (!all.empty() && load.comm.rank() == 0) warn(load.report.findings, not_loaded(all));
}

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

}  // namespace dckpt
