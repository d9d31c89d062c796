#include "migration/maps/arrangement/apply_key_map.h"

#include <algorithm>
#include <map>
#include <utility>

#include "mapping/base/error.h"
#include "migration/maps/arrangement/arrange_rows.h"
#include "migration/maps/arrangement/known_meaning.h"
#include "migration/maps/assignment/completeness.h"
#include "migration/maps/assignment/source_rows.h"

namespace dckpt {
namespace {

void refuse_models(const KeyMap& map, const MapNumbers& numbers) {
  for (const MapRefusal& refusal : map.refuse) {
    if (!numbers.is_true(refusal.only_if)) continue;
    throw_error(ErrorCode::kUnsupported, "the map {} is not for this model: {}, and {}",
                quote(map.family), numbers.describe(refusal.only_if), refusal.because);
  }
}

std::string describe(const KeyMap& map, const MapSide& side) {
  if (side.names == KeyNames::kHf) return "Hugging Face keys";
  if (!map.is_megatrons()) return str_format("the keys of {}", map.left);
  return str_format("Megatron's keys in the {} layout", name_of(kMegatronLayoutNames, side.layout));
}

/// Adds sentences on rows that a configuration asks for, and of which the model has none. A number
/// that states several rows may mean some of them only.
void add_stated_rows(const KeyMap& map, const MapNumbers& numbers, const SourceRows& rows,
                     std::vector<std::string>& problems) {
  std::map<std::string, std::pair<std::string, bool>>
      stated;  // the first row, and whether any is there
  for (std::size_t i = 0; i < map.tensors.size(); ++i) {
    const MapRow& row = map.tensors[i];
    if (row.stated_by.empty() || !numbers.is_true(row.stated_by) || !is_active(row, numbers))
      continue;
    auto& [first, found] =
        stated.emplace(row.stated_by, std::pair(row.hf.keys.front(), false)).first->second;
    found = found || rows.rows[i].form.has_value();
  }
  for (const auto& [number, row] : stated) {
    if (!row.second)
      problems.push_back(
          str_format("missing: {}, although {}", quote(row.first), numbers.describe(number)));
  }
}

/// Adds the tensors of optimizer state whose keys have a prefix, at `positions` of the source.
void add_state(MappedKeys mapped, const std::string& prefix,
               const std::vector<std::uint32_t>& positions, MappedKeys& result) {
  for (RearrangedTensor& tensor : mapped.tensors) {
    tensor.key.insert(0, prefix);
    for (TensorPart& part : tensor.parts) part.tensor = positions[part.tensor];
    result.tensors.push_back(std::move(tensor));
  }
  result.rows.insert(result.rows.end(), mapped.rows.begin(), mapped.rows.end());
  for (const auto& [position, rows] : mapped.left.kept)
    result.left.kept.emplace_back(positions[position], rows);
  result.counts.state_elements += mapped.counts.elements_out;
}

/// `state_layout`: see assign_rows().
MappedKeys apply(const KeyMap& map, MapNumbers numbers, const Metadata& source,
                 const MapTarget& target, std::optional<MegatronLayout> state_layout = {}) {
  refuse_models(map, numbers);
  Completeness completeness;
  SourceRows rows = assign_rows(map, numbers, source, target, state_layout, completeness);
  if (!state_layout) require_known_meaning(map, numbers, rows, target);
  MappedKeys result{
      .sides = {.from = rows.side.names, .from_layout = rows.side.layout, .prefix = rows.prefix}};
  result.left.dropped = std::move(rows.dropped);
  result.sides.flags = rows.flags;
  arrange_rows({map, numbers, source, rows, state_layout.has_value()}, target, result,
               completeness);
  completeness.raise_if_any(map, source, describe(map, rows.side), target.left_out);
  require_balance(map, result);
  for (const auto& [prefix, positions] : rows.states) {
    Metadata state;
    for (const std::uint32_t position : positions) {
      state.tensors.push_back(source.tensors[position]);
      std::string& key = state.tensors.back().key;
      key = rows.prefix.key(key)->substr(prefix.size());
    }
    MapTarget same = target;
    same.from = KeyNames::kMegatron;
    same.layout = result.sides.to_layout;
    add_state(apply(map, numbers, state, same, result.sides.from_layout), prefix, positions,
              result);
  }
  return result;
}

/// Returns whether a key is of a layer of the model, by a row with {l}.
bool is_of_layer(const KeyMap& map, const std::string& key) {
  return std::ranges::any_of(map.tensors, [&](const MapRow& row) {
    const std::string& pattern = row.hf.keys.front();
    const std::size_t at = pattern.find("{l}");
    return at != pattern.npos && key.starts_with(pattern.substr(0, at));
  });
}

/// Returns weights and biases of layers that the map does not know, scales of quantized ones aside.
KeyGroups strange_weights(const KeyMap& map, const SourceRows& rows, const KeyGroups& unknown) {
  KeyGroups strange;
  for (const AlikeKeys& group : unknown.groups("")) {
    for (const std::string& stored : group.keys) {
      const auto key = rows.prefix.key(stored);
      if (key && is_of_layer(map, *key) && key->find("scale") == std::string::npos &&
          (key->ends_with(".weight") || key->ends_with(".bias")))
        strange.add(stored);
    }
  }
  return strange;
}

}  // namespace

std::vector<std::string> misfits(const KeyMap& map, const MapNumbers& numbers,
                                 const Metadata& source, const MapTarget& target) {
  MapNumbers own = numbers;
  Completeness completeness;
  const SourceRows rows = assign_rows(map, own, source, target, {}, completeness);
  if (rows.side.names != KeyNames::kHf) return {};
  MappedKeys unused{
      .sides = {.from = rows.side.names, .from_layout = rows.side.layout, .prefix = rows.prefix}};
  arrange_rows({map, own, source, rows}, target, unused, completeness);
  add_stated_rows(map, numbers, rows, completeness.problems);
  std::vector<std::string> all = std::move(completeness.problems);
  for (const AlikeKeys& group : completeness.missing.groups(""))
    all.push_back("missing: " + kind_and_count(group));
  for (const AlikeKeys& group : strange_weights(map, rows, completeness.unknown).groups(""))
    all.push_back("the model that it describes has no such tensors: " + kind_and_count(group));
  return all;
}

MappedKeys apply_key_map(const KeyMap& map, const MapNumbers& numbers, const Metadata& source,
                         const MapTarget& target) {
  return apply(map, numbers, source, target);
}

}  // namespace dckpt
