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

constexpr bool takes_parts(MapStep step) {
  return step != MapStep::kTranspose && step != MapStep::kSqueeze && step != MapStep::kPadRows &&
         step != MapStep::kGatedQkvInterleave;
}

constexpr auto kStepsWithParts = [] {
  EnumNames<MapStep, 8> steps{};
  std::ranges::copy_if(kMapStepNames, steps.begin(), takes_parts,
                       [](auto& step) { return step.first; });
  return steps;
}();

/// The type of `concat_rows`, or `split_rows: 3`, or `split_rows: [a, b, b]`.
Type<MapTransform> transform() {
  const Form step = choice(kMapStepNames).form;
  const Form parts =
      one_or_more(word("a number, or the name of one"), "numbers, or names of them").form;
  const Form with_numbers =
      with_parts({.kind = Kind::kMapping, .names = choice(kStepsWithParts).form.names}, {parts});
  return Type<MapTransform>(with_parts({.kind = Kind::kEither}, {step, with_numbers}))
      .reading([](const Form& form, const Input& in, MapTransform& into) {
        const Form& step = form.parts[0];
        if (in.node.kind != YamlNode::Kind::kMap || in.node.keys.size() != 1)
          return step.read(in, &into.step);
        const std::size_t before = in.problems.size();
        step.read(in.of(in.node.keys.front()), &into.step);
        if (in.problems.size() > before) return;
        const Form& parts = form.parts[1].parts[0];
        parts.read(in.of(in.node.values.front()), &into.parts);
      })
      .showing([](const Form& form, const MapTransform& transform) {
        YamlNode step = form.parts[0].show(&transform.step);
        if (transform.parts.empty()) return step;
        const Form& parts = form.parts[1].parts[0];
        YamlNode map{.kind = YamlNode::Kind::kMap};
        map.keys.push_back(std::move(step));
        map.values.push_back(parts.show(&transform.parts));
        return map;
      });
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

/// Returns the owner of a row's left side, for messages.
const char* owner_of(const MapRow& row) {
  return row.of_trainer ? "the left side" : "Megatron";
}

/// Checks that the steps make as many tensors as the left side has.
void check_transform(const HfTensors& hf, const MapRow& row, const Input& in) {
  const KeyPattern of_row(row.megatron);
  const std::size_t wanted = 1 + row.more.size();
  const char* const owner = owner_of(row);
  std::size_t tensors = hf.keys.size();
  for (const MapTransform& transform : hf.transform) {
    const auto after = tensors_after(transform, tensors);
    if (!after) {
      in.report(str_format("{} cannot follow {}; it takes {}",
                           quote(name_of(kMapStepNames, transform.step)),
                           tensors == 1 ? "one tensor" : str_format("{} tensors", tensors),
                           what_it_takes(transform.step)));
      return;
    }
    tensors = *after;
    if (transform.step == MapStep::kExpertsInRows &&
        (&transform != &hf.transform.front() || KeyPattern(hf.keys.front()).has("e") ||
         !of_row.has("e")))
      in.report(
          str_format("'experts_in_rows' is the first step of a row with {{e}} in {} key alone",
                     row.of_trainer ? "its left" : "Megatron's"));
    if (transform.step == MapStep::kPadRows && &transform != &hf.transform.back())
      in.report("'pad_rows' is the last step");
  }
  if (hf.keys.empty() || (tensors == wanted && (wanted == 1 || splits(hf)))) return;
  in.report(wanted == 1
                ? str_format("{} tensors of Hugging Face are left where {} has one; put them "
                             "together with concat_rows or qkv_interleave",
                             tensors, owner)
                : str_format("{} left where {} has {}; the last step is split_rows or "
                             "split_groups with {} parts",
                             tensors == 1 ? "one tensor is" : str_format("{} tensors are", tensors),
                             owner, wanted, wanted));
}

Type<std::vector<std::string>> keys_of_tensors() {
  auto keys = one_or_more(pattern(), "a key, or a list of keys");
  keys.form.least = 1;
  return keys;
}

/// The fields `hf` and `transform`, of a row or of another form of its Hugging Face side.
Field<HfTensors> hf_keys() {
  return required(field("hf", &HfTensors::keys, keys_of_tensors()));
}
Field<HfTensors> hf_transform() {
  return optional_field("transform", &HfTensors::transform,
                        one_or_more(transform(), "a transform, or a list of them"));
}

Type<HfTensors> hf_form() {
  static const Schema<HfTensors> schema{{hf_keys(), hf_transform()}};
  return section(schema);
}

/// The type of the keys of a row's left side, which are Megatron's or those of another trainer.
template <bool kOfTrainer>
Type<MapRow> keys_on_the_left() {
  return Type<MapRow>(keys_of_tensors().form)
      .reading([](const Input& in, MapRow& row) {
        if (!row.megatron.empty())
          return in.report("a row has either 'megatron' or 'left', and this one has both");
        std::vector<std::string> all;
        keys_of_tensors().read(in, all);
        row.of_trainer = kOfTrainer;
        if (all.empty()) return;
        row.megatron = all.front();
        row.more.assign(all.begin() + 1, all.end());
      })
      .showing([](const MapRow& row) { return keys_of_tensors().show(row.megatron_keys()); });
}

/// The type of the kind of layers that have a row; `all` is the same as no word.
Type<std::string> layers_of_row() {
  return word("a kind of layers").reading([](const Form& form, const Input& in, std::string& into) {
    word(form.expected).read(in, into);
    if (into == kAllLayers) into.clear();
  });
}

/// The field `optional`: a flag, or the name of the number that says so.
Field<MapRow> optional_of_row() {
  const Form name = word("true, false, or the name of a number").form;
  return whole_unless("optional",
                      Type<MapRow>(with_parts({.kind = Kind::kEither}, {flag().form, name}))
                          .reading([](const Form& form, const Input& in, MapRow& row) {
                            std::string text;
                            form.parts[1].read(in, &text);
                            row.optional = text != "false";
                            if (text != "false" && text != "true") row.stated_by = text;
                          })
                          .showing([](const MapRow& row) {
                            return row.stated_by.empty() ? flag().show(true)
                                                         : YamlNode::string(row.stated_by);
                          }),
                      [](const MapRow& row) { return !row.optional; });
}

Type<MapCast> cast() {
  const auto type = optional_of(choice(kMapCastNames));
  static const Schema<MapCast> schema{
      {optional_field("megatron", &MapCast::megatron, type),
       optional_field("left", &MapCast::left, type), optional_field("hf", &MapCast::hf, type)},
      [](const Input& in, const MapCast&) {
        if (in.node.keys.empty())
          in.report(
              "expected {megatron: TYPE, hf: TYPE}, or one of "
              "them");
      }};
  return section(schema);
}

/// The type of a short decimal.
Type<float> constant() {
  return Type<float>(Form{.kind = Kind::kNumber})
      .reading([](const Input& in, float& into) {
        float value = 0;
        const char* const end = in.node.text.data() + in.node.text.size();
        const auto [rest, error] = std::from_chars(in.node.text.data(), end, value);
        if (in.node.kind == YamlNode::Kind::kText && !in.node.quoted && error == std::errc{} &&
            rest == end && value != 0 && std::abs(value) <= kMaxMapConstant)
          into = value;
        else
          in.unfit(str_format("a number from -{} to {}, not 0", kMaxMapConstant, kMaxMapConstant));
      })
      .showing([](const float& value) {
        std::array<char, 64> text{};
        const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
        return YamlNode::plain(std::string(text.data(), end));
      });
}

/// The type of `add: {value: 1}`, for which `add: 1` is short.
Type<MapAdd> add() {
  static const Schema<MapAdd> schema{
      {required(field("value", &MapAdd::value, constant())),
       optional_field("if", &MapAdd::only_if, word("the name of a number")),
       optional_field("rounded", &MapAdd::rounded, flag())}};
  return Type<MapAdd>(with_parts({.kind = Kind::kEither}, {constant().form, section_form(schema)}))
      .reading([](const Form& form, const Input& in, MapAdd& into) {
        const Form& one = form.parts[in.node.kind == YamlNode::Kind::kMap ? 1 : 0];
        one.read(in, one.section == nullptr ? static_cast<void*>(&into.value) : &into);
      })
      .showing([](const Form& form, const MapAdd& add) {
        return add == MapAdd{.value = add.value} ? constant().show(add.value)
                                                 : form.parts[1].show(&add);
      });
}

/// Checks that another key has the numbers of the row, or axes of the tensor instead of {l}, {v}
/// and {e}.
void check_numbers(const KeyPattern& of_row, const std::string& key, bool may_lack,
                   const Input& in) {
  const KeyPattern other(key);
  for (const std::string& number : other.numbers()) {
    if (!of_row.has(number))
      in.report(str_format("{} has the number {}, which {} has not", quote(key),
                           quote("{" + number + "}"), quote(of_row.text())));
  }
  for (const std::string& number : of_row.numbers()) {
    if (!other.has(number) && !(may_lack && (number == "l" || number == "v" || number == "e")))
      in.report(str_format("{} lacks the number {} of {}", quote(key), quote("{" + number + "}"),
                           quote(of_row.text())));
  }
}

/// Returns whether tensors are put one after the other, and no later step orders heads.
bool stacks_heads(const HfTensors& hf) {
  const auto last = std::ranges::find_if(
      hf.transform.rbegin(), hf.transform.rend(),
      [](auto& step) { return step.step == MapStep::kConcatRows || is_of_heads(step.step); });
  return last != hf.transform.rend() && last->step == MapStep::kConcatRows;
}

constexpr const char* kWrittenRow = "; a row is {megatron: KEY, hf: KEY or [KEYS]}";

void check_row(const Input& in, const MapRow& row) {
  if (in.node.find("megatron") == nullptr && in.node.find("left") == nullptr)
    in.report(str_format("'megatron' is missing{}", kWrittenRow));
  if (row.megatron.empty()) return;
  const KeyPattern megatron(row.megatron);
  std::vector<std::string> names = row.aliases;
  if (!row.local.empty()) names.push_back(row.local);
  for (const std::string& name : names) check_numbers(megatron, name, false, in);
  names.push_back(row.megatron);
  names.insert(names.end(), row.more.begin(), row.more.end());
  if (std::ranges::any_of(names,
                          [](const std::string& name) { return KeyPattern(name).counts_on(); }))
    in.report("'{l+m}' is for keys in Hugging Face files");
  std::vector<std::string> hf = row.hf.keys;
  for (const HfTensors& other : row.or_hf)
    hf.insert(hf.end(), other.keys.begin(), other.keys.end());
  for (const std::string& key : hf) {
    if (!key.empty()) check_numbers(megatron, key, true, in);
    if (KeyPattern(key).has_steps())
      in.report(str_format("'{{2l}}' and '{{2l+1}}' are for keys of {}", owner_of(row)));
  }
  for (const std::string& key : row.more) {
    if (!key.empty()) check_numbers(megatron, key, false, in);
  }
  const std::size_t wanted = 1 + row.more.size();
  for (const HfTensors& other : row.or_hf) {
    check_transform(other, row, {in.node, in.path + ".or", in.problems});
    if (wanted > 1 && splits(other) && splits(row.hf) &&
        shares_of(other.transform.back()) != shares_of(row.hf.transform.back()))
      in.report("each form divides the rows into the same parts");
  }
  check_transform(row.hf, row, in);
  if (wanted > 1 && (row.gated || !row.local.empty() || !row.aliases.empty()))
    in.report(str_format("'local', 'aliases' and 'gated' are for rows with one key of {}",
                         owner_of(row)));
  if (row.is_qkv() && (stacks_heads(row.hf) || std::ranges::any_of(row.or_hf, stacks_heads)))
    in.report(
        "concat_rows puts all heads of the query before those of key and value, and "
        "Megatron's linear_qkv has them by query groups; use qkv_interleave");
  if (row.add.value != 0 && has_step(row.hf.transform, MapStep::kPadRows))
    in.report("'add' is not for rows that pad_rows fills up");
  if (!row.layers.empty() && !megatron.has("l")) in.report("'layers' is for keys with {l}");
}

/// Returns the keys by which a row replaces others: {2l} is the same as {l}.
std::set<std::string> keys_of(const MapRow& row) {
  std::set<std::string> keys;
  for (const std::string& key : row.megatron_keys()) keys.insert(KeyPattern(key).without_steps());
  return keys;
}

Type<MapRow> row() {
  static const Schema<MapRow> schema{
      {
          whole_unless("megatron", keys_on_the_left<false>(),
                       [](const MapRow& row) { return row.of_trainer; }),
          whole_unless("left", keys_on_the_left<true>(),
                       [](const MapRow& row) { return !row.of_trainer; }),
          optional_field("local", &MapRow::local, pattern()),
          optional_field("aliases", &MapRow::aliases,
                         list_of(pattern(), "a list of Megatron's keys")),
          inside(&MapRow::hf, hf_keys()),
          inside(&MapRow::hf, hf_transform()),
          optional_field("or", &MapRow::or_hf,
                         list_of(hf_form(), "a list of forms {hf: KEYS, transform: STEPS}")),
          optional_field("cast", &MapRow::cast, cast()),
          optional_field("add", &MapRow::add, add()),
          optional_field("columns", &MapRow::columns, word("the name of a number")),
          optional_field("rows", &MapRow::rows, word("the name of a number")),
          optional_field("if", &MapRow::only_if, word("the name of a number")),
          optional_field("unless", &MapRow::unless, word("the name of a number")),
          optional_field("layers", &MapRow::layers, layers_of_row()),
          optional_of_row(),
          optional_field("gated", &MapRow::gated, flag()),
          optional_field("extra_state", &MapRow::extra_state, optional_of(flag())),
      },
      [](const Input& in, const MapRow& row) { check_row(in, row); },
      kWrittenRow};
  return section(schema).reading([](const Form& form, const Input& in, MapRow& into) {
    read_section(*form.section, in, &into);
    into.written.place = in.node.place;
  });
}

}  // namespace

config::Type<std::vector<MapRow>> map_rows_type() {
  return list_of(row(), "a list of rows {megatron: KEY, hf: KEY}")
      .reading([](const Form& form, const Input& in, std::vector<MapRow>& into) {
        if (in.node.kind == YamlNode::Kind::kList && in.node.values.size() > kMaxMapRows)
          return in.unfit(str_format("at most {} rows", kMaxMapRows));
        std::vector<MapRow> own;
        list_of(Type<MapRow>(form.parts[0]), form.expected).read(in, own);
        std::set<std::string> named;
        for (const MapRow& row : own) named.merge(keys_of(row));
        std::erase_if(into, [&](const MapRow& row) {
          return std::ranges::any_of(keys_of(row),
                                     [&](const std::string& key) { return named.contains(key); });
        });
        for (MapRow& row : own) {
          if (!row.megatron.empty() && !row.hf.keys.empty()) into.push_back(std::move(row));
        }
      });
}

bool is_of_heads(MapStep step) {
  return step == MapStep::kQkvInterleave || step == MapStep::kGatedQkvInterleave ||
         step == MapStep::kQkvGrouped;
}

std::optional<std::size_t> tensors_after(const MapTransform& transform, std::size_t before) {
  const std::vector<std::string>& parts = transform.parts;
  const auto count = parts.size() == 1 ? parse_u64(parts.front()) : std::nullopt;
  const bool has_parts = !parts.empty();
  if (has_parts && !takes_parts(transform.step)) return std::nullopt;
  switch (transform.step) {
    case MapStep::kSplitGroups:
      return before == 1 && parts.size() > 2 && parts.size() <= kMaxMapParts
                 ? std::optional(parts.size() - 1)
                 : std::nullopt;
    case MapStep::kExpertsInRows: return parts.size() == 1 ? std::optional(before) : std::nullopt;
    case MapStep::kTranspose:
    case MapStep::kSqueeze: return before;
    case MapStep::kPadRows: return before == 1 ? std::optional(before) : std::nullopt;
    case MapStep::kQkvInterleave:
    case MapStep::kQkvGrouped:
    case MapStep::kGatedQkvInterleave: {
      const bool fits = !has_parts || parts.size() == 2 || parts.size() == 3;
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
