#include "configs/maps/key_map.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "configs/maps/key_map_rows.h"
#include "configs/maps/key_map_schema.h"
#include "configs/maps/key_pattern.h"
#include "configs/policy/config_chain.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

ConfigLibrary map_library() {
  return {"map", "maps", shipped_maps()};
}

/// Returns the place of a row in a file, or that of the mapping of all rows.
TextPlace place_of_row(const YamlNode& root, const MapRow& row) {
  const YamlNode* const rows = root.find("tensors");
  if (rows == nullptr) return root.place;
  for (const YamlNode& node : rows->values) {
    const YamlNode* key = node.find(row.of_trainer ? "left" : "megatron");
    if (key != nullptr && !key->values.empty()) key = &key->values.front();
    if (key != nullptr && key->text == row.megatron && node.place.line == row.written.place.line &&
        node.place.column == row.written.place.column)
      return node.place;
  }
  return rows->place;
}

/// Returns the place of a number in a file, or that of the mapping of all numbers.
TextPlace place_of_number(const YamlNode& root, const std::string& name) {
  const YamlNode* const numbers = root.find("numbers");
  const YamlNode* const number = numbers != nullptr ? numbers->find(name) : nullptr;
  return number != nullptr ? number->place : numbers != nullptr ? numbers->place : root.place;
}

/// Returns the numbers from which a number follows if it is not given.
std::vector<std::string> needs(const MapNumber& number) {
  std::vector<std::string> names{number.part_of};
  for (const auto& [word, name] : number.words) names.push_back(name);
  const auto formula = parse_formula(number.otherwise);
  if (!number.otherwise.empty() && formula) {
    names.push_back(formula->left);
    names.push_back(formula->right);
  }
  return names;
}

/// The users of a number.
enum class NumberUse : std::uint8_t { kOfModel, kOfLayers };

/// Checks that need the whole map.
class WholeMap {
 public:
  WholeMap(const KeyMap& map, const YamlNode& root, ConfigProblems& problems)
      : map_(map), root_(root), problems_(problems) {
    for (const MapNumber& number : map.numbers) names_.push_back(number.name);
  }

  void check() {
    for (const MapNumber& number : map_.numbers) {
      const TextPlace place = place_of_number(root_, number.name);
      for (const std::string& other : needs(number))
        require(other, "numbers." + number.name, place, NumberUse::kOfLayers);
      std::set<std::string> seen;
      if (leads_to(number, number.name, seen))
        problems_.push_back(
            {place,
             str_format("numbers.{}: what it follows from follows from itself", number.name)});
    }
    for (const std::string& number : map_.dequantize.block)
      require(number, "dequantize", root_.place);
    for (const MapKinds& kinds : map_.all_kinds()) {
      for (const MapKind& kind : kinds.layers) {
        const bool is_new = kinds_.insert(kind.name).second;
        if (is_new && kind.name != kAllLayers) continue;
        problems_.push_back(
            {place_of_kinds(),
             str_format("kinds: {} {}", quote(kind.name),
                        is_new ? "means every layer, not a kind of them" : "is named twice")});
      }
    }
    for (const MapRow& row : map_.tensors) check_row(row);
    if (const YamlNode* const ignored = root_.find("ignore"); ignored != nullptr)
      require_side(ignored->find("left") != nullptr, ignored->find("megatron") != nullptr, "ignore",
                   ignored->place);
    for (const MapRefusal& refusal : map_.refuse) require(refusal.only_if, "refuse", root_.place);
    if (map_.tensors.empty())
      problems_.push_back({root_.place, "a map has rows: 'tensors' is missing"});
  }

 private:
  bool leads_to(const MapNumber& number, const std::string& name,
                std::set<std::string>& seen) const {
    return std::ranges::any_of(needs(number), [&](const std::string& other) {
      if (other == name) return true;
      const MapNumber* const next = map_.find_number(other);
      return next != nullptr && seen.insert(other).second && leads_to(*next, name, seen);
    });
  }

  /// Reports a text that is neither a number nor the name of one, and a number that differs by
  /// layer where layers are not known.
  void require(const std::string& name, const std::string& user, TextPlace place,
               NumberUse use = NumberUse::kOfModel) {
    if (name.empty() || name == "true" || name == "false" || parse_u64(name)) return;
    if (map_.find_number(name) != nullptr) {
      if (use == NumberUse::kOfModel && map_.differs_by_layer(name))
        problems_.push_back(
            {place, str_format("{}: the number {} differs by layer; it is for "
                               "'columns', 'rows' and 'transform' of rows with {{l}}",
                               user, quote(name))});
      return;
    }
    const auto close = nearest(name, names_);
    problems_.push_back(
        {place, str_format("{}: there is no number {}{}; 'numbers' says where each "
                           "comes from",
                           user, quote(name),
                           close ? str_format(" (did you mean {}?)", quote(*close)) : "")});
  }

  /// Reports a field that names the left side as maps of the other sort do.
  void require_side(bool says_left, bool says_megatron, const std::string& user, TextPlace place) {
    if (map_.is_megatrons() && says_left)
      problems_.push_back(
          {place, str_format("{}: 'left' is for maps that name their left side (left: NAME); "
                             "Megatron's side is 'megatron'",
                             user)});
    if (!map_.is_megatrons() && says_megatron)
      problems_.push_back(
          {place, str_format("{}: the left side of this map is {}, so write 'left' instead of "
                             "'megatron'; 'without' takes away rows of an extended map",
                             user, quote(map_.left))});
  }

  TextPlace place_of_kinds() const {
    const YamlNode* const kinds = root_.find("kinds");
    return kinds != nullptr ? kinds->place : root_.place;
  }

  void require_kind(const MapRow& row, TextPlace place) {
    if (row.layers.empty() || kinds_.contains(row.layers)) return;
    const std::vector<std::string> names(kinds_.begin(), kinds_.end());
    const auto close = nearest(row.layers, names);
    problems_.push_back(
        {place, str_format("{}: there is no kind of layers {}{}; 'kinds' names them", row.megatron,
                           quote(row.layers),
                           close ? str_format(" (did you mean {}?)", quote(*close)) : "")});
  }

  void require_for(const HfTensors& hf, const std::string& user, TextPlace place, NumberUse use) {
    for (const std::string& key : hf.keys) {
      if (KeyPattern(key).counts_on()) require("num_layers", user, place);
      if (map_.towers.have(key) != map_.towers.have(user))
        problems_.push_back({place, str_format("only one of {} and {} is of a tower; 'towers' has "
                                               "the beginnings of keys of both sides",
                                               quote(user), quote(key))});
    }
    const auto require_if_there = [&](const char* name) {
      if (map_.find_number(name) != nullptr) require(name, user, place, use);
    };
    for (const MapTransform& transform : hf.transform) {
      for (const std::string& part : transform.parts) require(part, user, place, use);
      if (transform.parts.empty() && is_of_heads(transform.step)) {
        require("num_attention_heads", user, place, use);
        require("num_query_groups", user, place, use);
        require_if_there("kv_channels");
      } else if (transform.step == MapStep::kPadRows) {
        require("vocab_size", user, place);
        require("padded_vocab_size", user, place);
      } else if (transform.step == MapStep::kRopeInterleave ||
                 transform.step == MapStep::kRopeDeinterleave) {
        require_if_there("rotary_dim");
      }
    }
  }

  void check_row(const MapRow& row) {
    const TextPlace place = place_of_row(root_, row);
    const NumberUse use =
        KeyPattern(row.megatron).has("l") ? NumberUse::kOfLayers : NumberUse::kOfModel;
    require_side(row.of_trainer || row.cast.left, !row.of_trainer || row.cast.megatron,
                 row.megatron, place);
    if (row.of_trainer && !row.local.empty())
      problems_.push_back({place, str_format("{}: 'local' is for Megatron's keys; other names of "
                                             "a trainer's are 'aliases'",
                                             row.megatron)});
    require(row.columns, row.megatron, place, use);
    require(row.rows, row.megatron, place, use);
    require(row.only_if, row.megatron, place);
    require(row.unless, row.megatron, place);
    require(row.stated_by, row.megatron, place);
    require(row.add.only_if, row.megatron, place);
    require_for(row.hf, row.megatron, place, use);
    for (const HfTensors& other : row.or_hf) require_for(other, row.megatron, place, use);
    require_kind(row, place);
    for (const std::string& key : row.megatron_keys()) once(rows_, row, key, place);
    for (const std::string& key : row.hf.keys) once(hf_rows_, row, key, place);
  }

  /// The keys of rows, by what they share.
  using RowsOfKeys = std::map<std::tuple<std::string, std::string, std::string, std::string>,
                              std::vector<std::pair<KeyPattern, const MapRow*>>>;

  /// Reports a key that two rows make.
  void once(RowsOfKeys& rows, const MapRow& row, const std::string& key, TextPlace place) {
    const KeyPattern pattern(key);
    auto& alike = rows[{pattern.skeleton(), row.layers, row.only_if, row.unless}];
    const auto same = std::ranges::find_if(
        alike, [&](const auto& known) { return known.first.overlaps(pattern); });
    if (same == alike.end()) {
      alike.emplace_back(pattern, &row);
      return;
    }
    const MapRow& other = *same->second;
    problems_.push_back(
        {place, &other == &row ? str_format("{} is named twice in a row", quote(key))
                : other.megatron == row.megatron
                    ? str_format("{} has two rows, the other in line {}; they may differ in "
                                 "'layers', 'if' or 'unless'",
                                 quote(row.megatron), other.written.place.line)
                    : str_format("{} is in two rows, with {} and with {}", quote(key),
                                 quote(other.megatron), quote(row.megatron))});
  }

  const KeyMap& map_;
  const YamlNode& root_;
  ConfigProblems& problems_;
  std::vector<std::string> names_;
  std::set<std::string> kinds_;
  RowsOfKeys rows_, hf_rows_;
};

/// Sets the file of the rows and refusals that have none yet.
void set_file(KeyMap& map, const std::string& file) {
  for (MapRow& row : map.tensors) {
    if (row.written.file.empty()) row.written.file = file;
  }
  for (MapRefusal& refusal : map.refuse) {
    if (refusal.written.file.empty()) refusal.written.file = file;
  }
}

KeyMap map_of(const PolicyText& found, const std::optional<std::filesystem::path>& folder) {
  CheckedKeyMap checked = check_key_map(found.yaml, folder);
  raise_if_any(std::move(checked.problems), found.name);
  set_file(checked.map, found.name);
  return std::move(checked.map);
}

}  // namespace

bool has_step(std::span<const MapTransform> steps, MapStep step) {
  return std::ranges::find(steps, step, &MapTransform::step) != steps.end();
}

bool MapRow::is_qkv() const {
  return !of_trainer &&
         (megatron.ends_with(".linear_qkv.weight") || megatron.ends_with(".linear_qkv.bias"));
}

std::vector<std::string> MapRow::megatron_keys() const {
  std::vector<std::string> keys{megatron};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

bool MapRow::changes_tensors() const {
  return hf != HfTensors{.keys = megatron_keys()} || cast != MapCast{} || add.value != 0;
}

bool MapNumber::is_by_layer() const {
  return std::ranges::any_of(
      hf, [](const std::string& path) { return path.find(kLayerInPath) != path.npos; });
}

bool MapTowers::have(std::string_view key) const {
  return std::ranges::any_of(keys,
                             [&](const std::string& tower) { return key.starts_with(tower); });
}

const MapKind* MapKinds::find(std::string_view name) const {
  const auto found = std::ranges::find(layers, name, &MapKind::name);
  return found == layers.end() ? nullptr : &*found;
}

std::vector<MapKinds> KeyMap::all_kinds() const {
  std::vector<MapKinds> all = kinds;
  if (std::ranges::none_of(kinds, [](const MapKinds& own) {
        return own.find(kDenseLayers) != nullptr || own.find(kMoeLayers) != nullptr;
      }))
    all.push_back({.layers = {{.name = kDenseLayers}, {.name = kMoeLayers}}});
  return all;
}

const std::string& KeyMap::left_name() const {
  static const std::string megatron = "Megatron";
  return is_megatrons() ? megatron : left;
}

bool KeyMap::has_extra_state(const MapRow& row) const {
  const KeyPattern pattern(row.megatron);
  const std::vector<std::string> parts = split(row.megatron, '.');  // a number may be written out
  const bool is_in_layer = pattern.has("l") || pattern.has("m") || pattern.has("v") ||
                           std::ranges::any_of(parts, [](const std::string& part) {
                             return parse_u64(part).has_value();
                           });
  return row.extra_state.value_or(extra_state.value_or(is_megatrons()) && is_in_layer &&
                                  row.megatron.ends_with(".weight"));
}

const MapNumber* KeyMap::find_number(std::string_view name) const {
  const auto found = std::ranges::find(numbers, name, &MapNumber::name);
  return found == numbers.end() ? nullptr : &*found;
}

bool KeyMap::differs_by_layer(const std::string& name) const {
  std::set<std::string> seen;
  std::vector<std::string> open{name};
  while (!open.empty()) {
    const std::string next = std::move(open.back());
    open.pop_back();
    const MapNumber* const number = find_number(next);
    if (number == nullptr || !seen.insert(next).second) continue;
    if (number->is_by_layer()) return true;
    std::ranges::copy(needs(*number), std::back_inserter(open));
  }
  return false;
}

KeyMap KeyMap::find(const std::string& name_or_file) {
  const PolicyText found = find_key_map(name_or_file);
  return map_of(found, found.folder);
}

KeyMap KeyMap::from_text(std::string_view yaml, const std::string& name) {
  return map_of({name, std::string(yaml), {}}, std::nullopt);
}

std::string name_of_left(const KeyMap& map) {
  return map.is_megatrons() ? "megatron" : "left";
}

std::string to_yaml(const KeyMap& map) {
  return to_yaml_text(key_map_type().show(map));
}

CheckedKeyMap check_key_map(std::string_view yaml,
                            const std::optional<std::filesystem::path>& folder) {
  CheckedKeyMap checked;
  const std::optional<YamlNode> root = read_config(
      map_library(), yaml, folder,
      [&](const YamlNode& node, const std::string& file, ConfigProblems& problems) {
        key_map_type().read({node, "", problems}, checked.map);
        set_file(checked.map, file);
      },
      checked.problems);
  // Nothing is checked if a row has a problem: references to it would be reported in vain.
  if (root && checked.problems.empty()) WholeMap(checked.map, *root, checked.problems).check();
  sort_by_place(checked.problems);
  return checked;
}

bool is_key_map(std::string_view yaml) {
  ConfigProblems ignored;
  const std::optional<YamlNode> root = parse_yaml(yaml, ignored);
  return root && (root->find("family") != nullptr || root->find("tensors") != nullptr);
}

PolicyText find_key_map(const std::string& name_or_file, const std::filesystem::path& folder) {
  return find_config(map_library(), name_or_file, folder);
}

}  // namespace dckpt
