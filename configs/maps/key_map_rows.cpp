#include "configs/maps/key_map_rows.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "configs/maps/key_map_fields.h"
#include "configs/maps/key_pattern.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

using namespace config;

/// The type of `concat_rows`, or `split_rows: 3`, or `split_rows: [a, b, b]`.
Type<MapTransform> transform() {
  const Type<MapStep> step = choice(kMapStepNames);
  const Type<std::vector<std::string>> parts =
      one_or_more(word("a number, or the name of one"), "numbers, or names of them");
  return {[step, parts](const YamlNode& node, const std::string& path, MapTransform& into,
                        ConfigProblems& problems) {
            if (node.kind != YamlNode::Kind::kMap || node.keys.size() != 1)
              return step.read(node, path, into.step, problems);
            const std::size_t before = problems.size();
            step.read(node.keys.front(), path, into.step, problems);
            if (problems.size() > before) return;
            parts.read(node.values.front(), path, into.parts, problems);
          },
          [step, parts](const MapTransform& transform) {
            if (transform.parts.empty()) return step.show(transform.step);
            YamlNode map;
            map.kind = YamlNode::Kind::kMap;
            map.keys.push_back(step.show(transform.step));
            map.values.push_back(parts.show(transform.parts));
            return map;
          }};
}

const char* what_it_takes(MapStep step) {
  switch (step) {
    case MapStep::kQkvInterleave:
      return "three tensors (with parts: their heads, groups and, if the value has others, the "
             "rows of its heads)";
    case MapStep::kGatedQkvInterleave: return "three tensors";
    case MapStep::kQkvGrouped: return "one tensor (with parts: as qkv_interleave)";
    case MapStep::kConcatRows: return "two tensors or more (with parts: as many)";
    case MapStep::kSplitRows: return "one tensor, and parts, as in 'split_rows: 3'";
    case MapStep::kSplitGroups:
      return "one tensor, groups, and the parts of each, as in 'split_groups: [num_groups, 2, 1]'";
    case MapStep::kRopeInterleave:
    case MapStep::kRopeDeinterleave:
      return "the heads of each tensor, as in 'rope_interleave: [num_attention_heads]'";
    case MapStep::kExpertsInRows: return "their count, as in 'experts_in_rows: num_experts'";
    case MapStep::kTranspose:
    case MapStep::kSqueeze: return "no parts";
    case MapStep::kPadRows: break;
  }
  return "one tensor, and no parts";
}

bool splits(const HfTensors& hf) {
  return !hf.transform.empty() && (hf.transform.back().step == MapStep::kSplitRows ||
                                   hf.transform.back().step == MapStep::kSplitGroups);
}

/// Checks that the steps make as many tensors as Megatron has.
void check_transform(const HfTensors& hf, const KeyPattern& of_row, std::size_t wanted,
                     const YamlNode& node, const std::string& path, ConfigProblems& problems) {
  std::size_t tensors = hf.keys.size();
  for (const MapTransform& transform : hf.transform) {
    const auto after = tensors_after(transform, tensors);
    if (!after) {
      problems.push_back(
          {node.place, str_format("{}: {} cannot follow {}; it takes {}", path,
                                  quote(name_of(kMapStepNames, transform.step)),
                                  tensors == 1 ? "one tensor" : str_format("{} tensors", tensors),
                                  what_it_takes(transform.step))});
      return;
    }
    tensors = *after;
    if (transform.step == MapStep::kExpertsInRows &&
        (&transform != &hf.transform.front() || KeyPattern(hf.keys.front()).has("e") ||
         !of_row.has("e")))
      problems.push_back({node.place, path + ": 'experts_in_rows' is the first step of a row with "
                                             "{e} in Megatron's key alone"});
    if (transform.step == MapStep::kPadRows && &transform != &hf.transform.back())
      problems.push_back({node.place, path + ": 'pad_rows' is the last step"});
  }
  if (hf.keys.empty() || (tensors == wanted && (wanted == 1 || splits(hf)))) return;
  problems.push_back(
      {node.place,
       wanted == 1
           ? str_format("{}: {} tensors of Hugging Face are left where Megatron has one; put them "
                        "together with concat_rows or qkv_interleave",
                        path, tensors)
           : str_format("{}: {} left where Megatron has {}; the last step is split_rows or "
                        "split_groups with {} parts",
                        path,
                        tensors == 1 ? "one tensor is" : str_format("{} tensors are", tensors),
                        wanted, wanted)});
}

Type<std::vector<std::string>> keys_of_tensors() {
  const std::string expected = "a key, or a list of keys";
  const Type<std::vector<std::string>> keys = one_or_more(pattern(), expected);
  return {[keys, expected](const YamlNode& node, const std::string& path,
                           std::vector<std::string>& into, ConfigProblems& problems) {
            if (node.kind == YamlNode::Kind::kList && node.values.empty())
              return report_unfit(node, path, expected, problems);
            keys.read(node, path, into, problems);
          },
          keys.show};
}

Type<std::vector<MapTransform>> transforms() {
  return one_or_more(transform(), "a transform, or a list of them");
}

Type<HfTensors> hf_form() {
  return section(
      Schema<HfTensors>{{field("hf", &HfTensors::keys, keys_of_tensors()),
                         optional_field("transform", &HfTensors::transform, transforms())},
                        [](const YamlNode& node, const std::string& path, const HfTensors&,
                           ConfigProblems& problems) {
                          if (node.find("hf") == nullptr)
                            problems.push_back({node.place, path + ": 'hf' is missing"});
                        }});
}

Field<MapRow> megatron_of_row() {
  const auto keys = keys_of_tensors();
  return {
      "megatron",
      [keys](const YamlNode& node, const std::string& path, MapRow& row, ConfigProblems& problems) {
        std::vector<std::string> all;
        keys.read(node, path, all, problems);
        if (all.empty()) return;
        row.megatron = all.front();
        row.more.assign(all.begin() + 1, all.end());
      },
      [keys](const MapRow& row) { return std::optional(keys.show(row.megatron_keys())); }};
}

/// The field `layers`; `layers: all` is the same as no word.
Field<MapRow> layers_of_row() {
  const Type<std::string> kind = word("a kind of layers");
  return {
      "layers",
      [kind](const YamlNode& node, const std::string& path, MapRow& row, ConfigProblems& problems) {
        kind.read(node, path, row.layers, problems);
        if (row.layers == kAllLayers) row.layers.clear();
      },
      [kind](const MapRow& row) {
        return row.layers.empty() ? std::nullopt : std::optional(kind.show(row.layers));
      }};
}

Field<MapRow> hf_of_row() {
  const auto keys = keys_of_tensors();
  return {"hf",
          [keys](const YamlNode& node, const std::string& path, MapRow& row,
                 ConfigProblems& problems) { keys.read(node, path, row.hf.keys, problems); },
          [keys](const MapRow& row) { return std::optional(keys.show(row.hf.keys)); }};
}

Field<MapRow> transform_of_row() {
  const auto steps = transforms();
  return {"transform",
          [steps](const YamlNode& node, const std::string& path, MapRow& row,
                  ConfigProblems& problems) { steps.read(node, path, row.hf.transform, problems); },
          [steps](const MapRow& row) {
            return row.hf.transform.empty() ? std::nullopt
                                            : std::optional(steps.show(row.hf.transform));
          }};
}

/// The field `optional`: a flag, or the name of the number that says so.
Field<MapRow> optional_of_row() {
  const Type<std::string> name = word("true, false, or the name of a number");
  return {
      "optional",
      [name](const YamlNode& node, const std::string& path, MapRow& row, ConfigProblems& problems) {
        std::string text;
        name.read(node, path, text, problems);
        row.optional = text != "false";
        if (text != "false" && text != "true") row.stated_by = text;
      },
      [name](const MapRow& row) {
        if (!row.optional) return std::optional<YamlNode>();
        return std::optional(row.stated_by.empty() ? flag().show(true) : name.show(row.stated_by));
      }};
}

Field<MapRow> extra_state() {
  return {"extra_state",
          [](const YamlNode& node, const std::string& path, MapRow& row, ConfigProblems& problems) {
            flag().read(node, path, row.extra_state.emplace(true), problems);
          },
          [](const MapRow& row) {
            return row.extra_state ? std::optional(flag().show(*row.extra_state)) : std::nullopt;
          }};
}

Field<MapCast> cast_of(std::string name, std::optional<DType> MapCast::*member) {
  const Type<DType> type = choice(kMapCastNames);
  return {std::move(name),
          [type, member](const YamlNode& node, const std::string& path, MapCast& into,
                         ConfigProblems& problems) {
            type.read(node, path, (into.*member).emplace(DType::kFloat32), problems);
          },
          [type, member](const MapCast& cast) {
            return cast.*member ? std::optional(type.show(*(cast.*member))) : std::nullopt;
          }};
}

Type<MapCast> cast() {
  return section(Schema<MapCast>{
      {cast_of("megatron", &MapCast::megatron), cast_of("hf", &MapCast::hf)},
      [](const YamlNode& node, const std::string& path, const MapCast&, ConfigProblems& problems) {
        if (node.keys.empty())
          problems.push_back({node.place, path + ": expected {megatron: TYPE, hf: TYPE}, or one of "
                                                 "them"});
      }});
}

/// The type of a short decimal.
Type<float> constant() {
  return {[](const YamlNode& node, const std::string& path, float& into, ConfigProblems& problems) {
            float value = 0;
            const char* const end = node.text.data() + node.text.size();
            const auto [rest, error] = std::from_chars(node.text.data(), end, value);
            if (node.kind == YamlNode::Kind::kText && !node.quoted && error == std::errc{} &&
                rest == end && value != 0 && std::abs(value) <= kMaxMapConstant)
              into = value;
            else
              report_unfit(
                  node, path,
                  str_format("a number from -{} to {}, not 0", kMaxMapConstant, kMaxMapConstant),
                  problems);
          },
          [](const float& value) {
            std::array<char, 64> text{};
            const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
            return YamlNode::plain(std::string(text.data(), end));
          }};
}

/// The type of `add: {value: 1}`, for which `add: 1` is short.
Type<MapAdd> add() {
  const Type<float> value = constant();
  const Type<MapAdd> all =
      section(Schema<MapAdd>{{field("value", &MapAdd::value, value),
                              optional_field("if", &MapAdd::only_if, word("the name of a number")),
                              optional_field("rounded", &MapAdd::rounded, flag())},
                             [](const YamlNode& node, const std::string& path, const MapAdd& add,
                                ConfigProblems& problems) {
                               if (add.value == 0 && node.find("value") == nullptr)
                                 problems.push_back({node.place, path + ": 'value' is missing"});
                             }});
  return {[value, all](const YamlNode& node, const std::string& path, MapAdd& into,
                       ConfigProblems& problems) {
            if (node.kind == YamlNode::Kind::kMap)
              all.read(node, path, into, problems);
            else
              value.read(node, path, into.value, problems);
          },
          [value, all](const MapAdd& add) {
            return add == MapAdd{.value = add.value} ? value.show(add.value) : all.show(add);
          }};
}

/// Checks that another key has the numbers of the row, or axes of the tensor instead of {l}, {v}
/// and {e}.
void check_numbers(const KeyPattern& of_row, const std::string& key, bool may_lack,
                   const YamlNode& node, const std::string& path, ConfigProblems& problems) {
  const KeyPattern other(key);
  for (const std::string& number : other.numbers()) {
    if (!of_row.has(number))
      problems.push_back(
          {node.place, str_format("{}: {} has the number {}, which {} has not", path, quote(key),
                                  quote("{" + number + "}"), quote(of_row.text()))});
  }
  for (const std::string& number : of_row.numbers()) {
    if (!other.has(number) && !(may_lack && (number == "l" || number == "v" || number == "e")))
      problems.push_back(
          {node.place, str_format("{}: {} lacks the number {} of {}", path, quote(key),
                                  quote("{" + number + "}"), quote(of_row.text()))});
  }
}

/// Returns whether tensors are put one after the other, and no later step orders heads.
bool stacks_heads(const HfTensors& hf) {
  const auto last = std::ranges::find_if(
      hf.transform.rbegin(), hf.transform.rend(),
      [](auto& step) { return step.step == MapStep::kConcatRows || is_of_heads(step.step); });
  return last != hf.transform.rend() && last->step == MapStep::kConcatRows;
}

void check_row(const YamlNode& node, const std::string& path, const MapRow& row,
               ConfigProblems& problems) {
  for (const char* const name : {"megatron", "hf"}) {
    if (node.find(name) == nullptr)
      problems.push_back(
          {node.place,
           str_format("{}: '{}' is missing; a row is {{megatron: KEY, hf: KEY or [KEYS]}}", path,
                      name)});
  }
  if (row.megatron.empty()) return;
  const KeyPattern megatron(row.megatron);
  std::vector<std::string> names = row.aliases;
  if (!row.local.empty()) names.push_back(row.local);
  for (const std::string& name : names) check_numbers(megatron, name, false, node, path, problems);
  names.push_back(row.megatron);
  names.insert(names.end(), row.more.begin(), row.more.end());
  if (std::ranges::any_of(names,
                          [](const std::string& name) { return KeyPattern(name).counts_on(); }))
    problems.push_back({node.place, path + ": '{l+m}' is for keys in Hugging Face files"});
  std::vector<std::string> hf = row.hf.keys;
  for (const HfTensors& other : row.or_hf)
    hf.insert(hf.end(), other.keys.begin(), other.keys.end());
  for (const std::string& key : hf) {
    if (!key.empty()) check_numbers(megatron, key, true, node, path, problems);
    if (KeyPattern(key).has_steps())
      problems.push_back({node.place, path + ": '{2l}' and '{2l+1}' are for keys of Megatron"});
  }
  for (const std::string& key : row.more) {
    if (!key.empty()) check_numbers(megatron, key, false, node, path, problems);
  }
  const std::size_t wanted = 1 + row.more.size();
  for (const HfTensors& other : row.or_hf) {
    check_transform(other, megatron, wanted, node, path + ".or", problems);
    if (wanted > 1 && splits(other) && splits(row.hf) &&
        shares_of(other.transform.back()) != shares_of(row.hf.transform.back()))
      problems.push_back({node.place, path + ": each form divides the rows into the same parts"});
  }
  check_transform(row.hf, megatron, wanted, node, path, problems);
  if (wanted > 1 && (row.gated || !row.local.empty() || !row.aliases.empty()))
    problems.push_back(
        {node.place,
         path + ": 'local', 'aliases' and 'gated' are for rows with one key of Megatron"});
  if (row.is_qkv() && (stacks_heads(row.hf) || std::ranges::any_of(row.or_hf, stacks_heads)))
    problems.push_back(
        {node.place,
         path + ": concat_rows puts all heads of the query before those of key and value, and "
                "Megatron's linear_qkv has them by query groups; use qkv_interleave"});
  if (row.add.value != 0 && has_step(row.hf.transform, MapStep::kPadRows))
    problems.push_back({node.place, path + ": 'add' is not for rows that pad_rows fills up"});
  if (!row.layers.empty() && !megatron.has("l"))
    problems.push_back({node.place, path + ": 'layers' is for keys with {l}"});
}

/// Returns the keys by which a row replaces others: {2l} is the same as {l}.
std::set<std::string> keys_of(const MapRow& row) {
  std::set<std::string> keys;
  for (const std::string& key : row.megatron_keys()) keys.insert(KeyPattern(key).without_steps());
  return keys;
}

Type<MapRow> row() {
  Type<MapRow> type = section(Schema<MapRow>{
      {
          megatron_of_row(),
          optional_field("local", &MapRow::local, pattern()),
          optional_field("aliases", &MapRow::aliases,
                         list_of(pattern(), "a list of Megatron's keys")),
          hf_of_row(),
          transform_of_row(),
          optional_field("or", &MapRow::or_hf,
                         list_of(hf_form(), "a list of forms {hf: KEYS, transform: STEPS}")),
          optional_field("cast", &MapRow::cast, cast()),
          optional_field("add", &MapRow::add, add()),
          optional_field("columns", &MapRow::columns, word("the name of a number")),
          optional_field("rows", &MapRow::rows, word("the name of a number")),
          optional_field("if", &MapRow::only_if, word("the name of a number")),
          optional_field("unless", &MapRow::unless, word("the name of a number")),
          layers_of_row(),
          optional_of_row(),
          optional_field("gated", &MapRow::gated, flag()),
          extra_state(),
      },
      check_row});
  const auto read = type.read;
  type.read = [read](const YamlNode& node, const std::string& path, MapRow& into,
                     ConfigProblems& problems) {
    read(node, path, into, problems);
    into.written.place = node.place;
  };
  return type;
}

}  // namespace

config::Type<std::vector<MapRow>> map_rows_type() {
  const Type<std::vector<MapRow>> list = list_of(row(), "a list of rows {megatron: KEY, hf: KEY}");
  return {[list](const YamlNode& node, const std::string& path, std::vector<MapRow>& into,
                 ConfigProblems& problems) {
            if (node.kind == YamlNode::Kind::kList && node.values.size() > kMaxMapRows)
              return report_unfit(node, path, str_format("at most {} rows", kMaxMapRows), problems);
            std::vector<MapRow> own;
            list.read(node, path, own, problems);
            std::set<std::string> named;
            for (const MapRow& row : own) named.merge(keys_of(row));
            std::erase_if(into, [&](const MapRow& row) {
              return std::ranges::any_of(
                  keys_of(row), [&](const std::string& key) { return named.contains(key); });
            });
            for (MapRow& row : own) {
              if (!row.megatron.empty() && !row.hf.keys.empty()) into.push_back(std::move(row));
            }
          },
          list.show};
}

bool is_of_heads(MapStep step) {
  return step == MapStep::kQkvInterleave || step == MapStep::kGatedQkvInterleave ||
         step == MapStep::kQkvGrouped;
}

std::optional<std::size_t> tensors_after(const MapTransform& transform, std::size_t before) {
  const std::vector<std::string>& parts = transform.parts;
  const auto count = parts.size() == 1 ? parse_u64(parts.front()) : std::nullopt;
  const bool has_parts = !parts.empty();
  switch (transform.step) {
    case MapStep::kSplitGroups:
      return before == 1 && parts.size() > 2 && parts.size() <= kMaxMapParts
                 ? std::optional(parts.size() - 1)
                 : std::nullopt;
    case MapStep::kExpertsInRows: return parts.size() == 1 ? std::optional(before) : std::nullopt;
    case MapStep::kTranspose:
    case MapStep::kSqueeze: return has_parts ? std::nullopt : std::optional(before);
    case MapStep::kPadRows: return has_parts || before != 1 ? std::nullopt : std::optional(before);
    case MapStep::kQkvInterleave:
    case MapStep::kQkvGrouped:
    case MapStep::kGatedQkvInterleave: {
      const bool fits = !has_parts || ((parts.size() == 2 || parts.size() == 3) &&
                                       transform.step != MapStep::kGatedQkvInterleave);
      const std::size_t wanted = transform.step == MapStep::kQkvGrouped ? 1 : 3;
      return !fits || before != wanted ? std::nullopt : std::optional<std::size_t>(1);
    }
    case MapStep::kRopeInterleave:
    case MapStep::kRopeDeinterleave:
      return parts.size() == before ? std::optional(before) : std::nullopt;
    case MapStep::kConcatRows:
      if (before < 2 || (has_parts && parts.size() != before)) return std::nullopt;
      return 1;
    case MapStep::kSplitRows:
      if (before != 1 || !has_parts) return std::nullopt;
      if (parts.size() > 1)
        return parts.size() <= kMaxMapParts ? std::optional(parts.size()) : std::nullopt;
      if (!count || *count < 2 || *count > kMaxMapParts) return std::nullopt;
      return *count;
  }
  return std::nullopt;
}

std::vector<std::string> shares_of(const MapTransform& split) {
  if (split.step == MapStep::kSplitGroups) return {split.parts.begin() + 1, split.parts.end()};
  return split.parts.size() > 1 ? split.parts : std::vector<std::string>();
}

}  // namespace dckpt
