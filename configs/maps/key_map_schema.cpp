#include "configs/maps/key_map_schema.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "configs/maps/key_map_fields.h"
#include "configs/maps/key_map_rows.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

using namespace config;

constexpr std::int64_t kMapVersion = 1;

/// The type of words with dots between them, one of which may be {l}, the number of a layer.
Type<std::string> path_of_words(const std::string& expected) {
  const Type<std::string> any = text(expected);
  return {[any, expected](const YamlNode& node, const std::string& path, std::string& into,
                          ConfigProblems& problems) {
            std::vector<std::string> words = split(node.text, '.');
            const auto layer = std::ranges::find(words, kLayerInPath);
            if (layer != words.begin() && layer != words.end()) words.erase(layer);  // at most one
            if (node.kind == YamlNode::Kind::kText && !std::ranges::all_of(words, is_word))
              return report_unfit(node, path, expected, problems);
            any.read(node, path, into, problems);
          },
          any.show};
}

/// The type of a mapping of words in config.json to the numbers that they stand for.
Type<std::map<std::string, std::string>> words() {
  const Type<std::string> name = word("a number, or the name of one");
  using Words = std::map<std::string, std::string>;
  return {
      [=](const YamlNode& node, const std::string& path, Words& into, ConfigProblems& problems) {
        if (node.kind != YamlNode::Kind::kMap || node.keys.empty())
          return report_unfit(node, path, "{WORD: NUMBER}", problems);
        for (std::size_t i = 0; i < node.keys.size(); ++i)
          name.read(node.values[i], path, into[node.keys[i].text], problems);
      },
      [=](const Words& words) {
        YamlNode map;
        map.kind = YamlNode::Kind::kMap;
        for (const auto& [in_config, number] : words) {
          map.keys.push_back(YamlNode::string(in_config));
          map.values.push_back(name.show(number));
        }
        return map;
      }};
}

Type<MapNumber> number() {
  const auto names = one_or_more(word("a name"), "a name, or a list of names");
  const auto paths = one_or_more(path_of_words("a name, or several with dots between them"),
                                 "a name, or a list of names");
  const Type<std::string> any = text("a number, true, false, or a formula of numbers");
  Type<std::string> formula = any;
  formula.read = [any](const YamlNode& node, const std::string& path, std::string& into,
                       ConfigProblems& problems) {
    any.read(node, path, into, problems);
    if (!into.empty() && !parse_formula(into))
      report_unfit(node, path,
                   "a number, true, false, the name of a number, or two with *, +, / or round_up "
                   "between them",
                   problems);
  };
  return section(Schema<MapNumber>{
      {
          optional_field("args", &MapNumber::args, names),
          optional_field("args_if", &MapNumber::args_if, word("the name of a flag")),
          optional_field("args_not", &MapNumber::args_not, word("the name of a flag")),
          optional_field("hf", &MapNumber::hf, paths),
          optional_field("words", &MapNumber::words, words()),
          optional_field("part_of", &MapNumber::part_of, word("the name of a number")),
          optional_field("else", &MapNumber::otherwise, formula),
      },
      [](const YamlNode& node, const std::string& path, const MapNumber& number,
         ConfigProblems& problems) {
        if (!number.words.empty() && !number.part_of.empty())
          problems.push_back({node.place, path + ": 'words' and 'part_of' exclude each other"});
      }});
}

/// The type of a mapping of names; the numbers of the extended map stay unless they are given
/// again.
Type<std::vector<MapNumber>> numbers() {
  const Type<MapNumber> type = number();
  return {[type](const YamlNode& node, const std::string& path, std::vector<MapNumber>& into,
                 ConfigProblems& problems) {
            if (node.kind != YamlNode::Kind::kMap || node.keys.size() > kMaxMapNumbers)
              return report_unfit(node, path,
                                  str_format("a mapping of at most {} names", kMaxMapNumbers),
                                  problems);
            for (std::size_t i = 0; i < node.keys.size(); ++i) {
              const std::string& name = node.keys[i].text;
              if (!is_word(name) || parse_u64(name) || parse_formula(name)->left != name) {
                report_unfit(node.keys[i], path, "the name of a number", problems);
                continue;
              }
              MapNumber number{.name = name};
              type.read(node.values[i], str_format("{}.{}", path, name), number, problems);
              std::erase_if(into, [&](const MapNumber& known) { return known.name == name; });
              into.push_back(std::move(number));
            }
          },
          [type](const std::vector<MapNumber>& numbers) {
            YamlNode map;
            map.kind = YamlNode::Kind::kMap;
            for (const MapNumber& number : numbers) {
              map.keys.push_back(YamlNode::plain(number.name));
              map.values.push_back(type.show(number));
            }
            return map;
          }};
}

/// The type of a list to which items are added: those of the extended map stay, each once.
template <typename T>
Type<std::vector<T>> more_of(Type<std::vector<T>> list) {
  const auto read = list.read;
  list.read = [read](const YamlNode& node, const std::string& path, std::vector<T>& into,
                     ConfigProblems& problems) {
    std::vector<T> own;
    read(node, path, own, problems);
    for (T& item : own) {
      if (std::ranges::find(into, item) == into.end()) into.push_back(std::move(item));
    }
  };
  return list;
}

/// The type of a mapping of kinds to the words for them, or a list of kinds.
Type<std::vector<MapKind>> kinds_of_layers() {
  const std::string expected = "{KIND: WORDS}, or a list of kinds";
  const Type<std::string> name = word("the name of a kind of layers");
  const auto words = one_or_more(text("a word"), "a word, or a list of words");
  return {[=](const YamlNode& node, const std::string& path, std::vector<MapKind>& into,
              ConfigProblems& problems) {
            const bool has_words = node.kind == YamlNode::Kind::kMap;
            if (!has_words && node.kind != YamlNode::Kind::kList)
              return report_unfit(node, path, expected, problems);
            const std::vector<YamlNode>& names = has_words ? node.keys : node.values;
            for (std::size_t i = 0; i < names.size(); ++i) {
              MapKind& kind = into.emplace_back();
              name.read(names[i], path, kind.name, problems);
              if (has_words) words.read(node.values[i], path, kind.words, problems);
            }
          },
          [=](const std::vector<MapKind>& kinds) {
            YamlNode map;
            map.kind = YamlNode::Kind::kMap;
            std::vector<YamlNode> names;
            bool has_words = false;
            for (const MapKind& kind : kinds) {
              names.push_back(name.show(kind.name));
              has_words = has_words || !kind.words.empty();
              map.values.push_back(words.show(kind.words));
            }
            if (!has_words) return YamlNode::list(std::move(names));
            map.keys = std::move(names);
            return map;
          }};
}

Type<MapKinds> kinds() {
  const auto names = one_or_more(word("a name"), "a name, or a list of names");
  return section(Schema<MapKinds>{
      {field("layers", &MapKinds::layers, kinds_of_layers()),
       optional_field("args", &MapKinds::args, names), optional_field("hf", &MapKinds::hf, names)},
      [](const YamlNode& node, const std::string& path, const MapKinds& kinds,
         ConfigProblems& problems) {
        if (kinds.layers.size() < 2)
          problems.push_back({node.place, path + ": expected two kinds of layers or more"});
        std::set<std::string> words;
        for (const MapKind& kind : kinds.layers) {
          for (const std::string& one : kind.words) {
            if (!words.insert(one).second)
              problems.push_back(
                  {node.place, str_format("{}: {} means two kinds of layers", path, quote(one))});
          }
        }
        if (words.empty() != (kinds.args.empty() && kinds.hf.empty()))
          problems.push_back(
              {node.place,
               path + (words.empty() ? ": 'args' and 'hf' name lists of words, but no kind has any"
                                     : ": the kinds have words, but neither 'args' nor 'hf' says "
                                       "where configurations list them")});
      }});
}

Type<MapTowers> towers() {
  return section(Schema<MapTowers>{
      {field("keys", &MapTowers::keys,
             list_of(text("what keys start with"), "a list of what keys start with")),
       optional_field("hf_text_prefix", &MapTowers::hf_text_prefix, text("what keys start with"))},
      [](const YamlNode& node, const std::string& path, const MapTowers& towers,
         ConfigProblems& problems) {
        if (towers.keys.empty()) problems.push_back({node.place, path + ": 'keys' is missing"});
      }});
}

Type<MapDequantize> dequantize() {
  return section(Schema<MapDequantize>{
      {field("scales", &MapDequantize::scales, text("how the keys of scales end")),
       field("block", &MapDequantize::block,
             list_of(word("a number, or the name of one"), "[ROWS, COLUMNS]"))},
      [](const YamlNode& node, const std::string& path, const MapDequantize& dequantize,
         ConfigProblems& problems) {
        if (dequantize.scales.empty() || dequantize.block.size() != 2)
          problems.push_back(
              {node.place, path + ": expected {scales: SUFFIX, block: [ROWS, COLUMNS]}"});
      }});
}

Type<MapRefusal> refusal() {
  return section(Schema<MapRefusal>{
      {field("if", &MapRefusal::only_if, word("the name of a number")),
       field("because", &MapRefusal::because, text("a sentence"))},
      [](const YamlNode& node, const std::string& path, const MapRefusal& refusal,
         ConfigProblems& problems) {
        if (refusal.only_if.empty() || refusal.because.empty())
          problems.push_back({node.place, path + ": expected {if: NUMBER, because: SENTENCE}"});
      }});
}

struct Ignored {
  std::vector<std::string> megatron;
  std::vector<std::string> hf;
};

Field<KeyMap> ignore() {
  const auto globs =
      more_of(list_of(text("a pattern of keys"), "a list of patterns, such as [\"optimizer.*\"]"));
  const Type<Ignored> type = section(Schema<Ignored>{{
      field("megatron", &Ignored::megatron, globs),
      field("hf", &Ignored::hf, globs),
  }});
  return {
      "ignore",
      [type](const YamlNode& node, const std::string& path, KeyMap& map, ConfigProblems& problems) {
        Ignored ignored{map.ignore_megatron, map.ignore_hf};
        type.read(node, path, ignored, problems);
        map.ignore_megatron = std::move(ignored.megatron);
        map.ignore_hf = std::move(ignored.hf);
      },
      [type](const KeyMap& map) {
        return std::optional(type.show({map.ignore_megatron, map.ignore_hf}));
      }};
}

Field<KeyMap> map_version() {
  return {
      "version",
      [](const YamlNode& node, const std::string& path, KeyMap&, ConfigProblems& problems) {
        std::int64_t version = kMapVersion;
        integer64(1, INT32_MAX).read(node, path, version, problems);
        if (version != kMapVersion)
          problems.push_back(
              {node.place,
               str_format("{}: this release reads maps of version 1, not of version {}", path,
                          version),
               ErrorCode::kUnsupported});
      },
      [](const KeyMap&) { return std::optional(YamlNode::plain(std::to_string(kMapVersion))); }};
}

Field<KeyMap> map_extends() {
  return {
      "extends",
      [](const YamlNode& node, const std::string& path, KeyMap&, ConfigProblems& problems) {
        std::string name;
        text("the name of a map that comes with dckpt, or a file").read(node, path, name, problems);
      },
      [](const KeyMap&) { return std::optional<YamlNode>(); }};
}

/// Takes away rows, ignored keys and extra states of the extended map. Those of this file have no
/// file yet, so that the order of the fields does not matter.
Field<KeyMap> without() {
  const auto globs = list_of(text("a pattern of Megatron's keys"),
                             "a list of patterns of Megatron's keys, such as [\"*.bias\"]");
  return {
      "without",
      [globs](const YamlNode& node, const std::string& path, KeyMap& map,
              ConfigProblems& problems) {
        std::vector<std::string> patterns;
        globs.read(node, path, patterns, problems);
        for (const std::string& pattern : patterns) {
          auto taken = std::erase_if(map.tensors, [&](const MapRow& row) {
            return !row.written.file.empty() && glob_match(pattern, row.megatron);
          });
          for (auto* const inherited : {&map.ignore_megatron, &map.ignore_hf, &map.extra_states})
            taken += std::erase(*inherited, pattern);
          if (taken == 0)
            problems.push_back({node.place, str_format("{}: the extended map has no row with a key "
                                                       "of Megatron like {}, and no pattern of "
                                                       "'ignore' or 'extra_states' that is equal",
                                                       path, quote(pattern))});
        }
      },
      [](const KeyMap&) { return std::optional<YamlNode>(); }};
}

/// Another spelling of a field, which is understood but not shown.
Field<KeyMap> understood(Field<KeyMap> field) {
  field.show = [](const KeyMap&) { return std::optional<YamlNode>(); };
  return field;
}

void check_has_name(const YamlNode& node, const std::string&, const KeyMap& map,
                    ConfigProblems& problems) {
  if (node.find("version") == nullptr)
    problems.push_back(
        {node.place, "the version of the schema is missing; begin with the line 'version: 1'"});
  if (node.find("dequantize") != nullptr && node.find("dequantise") != nullptr)
    problems.push_back({node.place, "'dequantize' is there twice, in two spellings; keep one"});
  if (map.family.empty()) problems.push_back({node.place, "'family' is missing"});
}

}  // namespace

const config::Type<KeyMap>& key_map_type() {
  static const Type<KeyMap> type = section(Schema<KeyMap>{
      {
          map_version(),
          map_extends(),
          without(),
          field("family", &KeyMap::family, word("the name of a family of models")),
          optional_field("architectures", &KeyMap::architectures,
                         list_of(word("a name"), "a list of names, as in config.json")),
          optional_field("model_types", &KeyMap::model_types,
                         list_of(text("a name"), "a list of names, as in config.json")),
          optional_field("hf_prefix", &KeyMap::hf_prefix, text("what keys start with")),
          field("numbers", &KeyMap::numbers, numbers()),
          optional_field("kinds", &KeyMap::kinds,
                         list_of(kinds(), "a list of {layers: KINDS, args: NAMES, hf: NAMES}")),
          optional_field("towers", &KeyMap::towers, towers()),
          optional_field("dequantize", &KeyMap::dequantize, dequantize()),
          understood(optional_field("dequantise", &KeyMap::dequantize, dequantize())),
          field("tensors", &KeyMap::tensors, map_rows_type()),
          optional_field("extra_states", &KeyMap::extra_states,
                         more_of(list_of(pattern(), "a list of modules"))),
          optional_field("refuse", &KeyMap::refuse,
                         more_of(list_of(refusal(), "a list of {if: NUMBER, because: SENTENCE}"))),
          ignore(),
      },
      check_has_name});
  return type;
}

std::optional<MapFormula> parse_formula(std::string_view text) {
  const std::vector<std::string> words = split(text, ' ');
  if (!std::ranges::all_of(words, [](const std::string& one) {
        return is_word(one) || one == "*" || one == "+" || one == "/";
      }))
    return std::nullopt;
  MapFormula formula{words.front()};
  if (!is_word(formula.left)) return std::nullopt;
  if (words.size() == 1) return formula;
  if (words.size() != 3 || !is_word(words[2])) return std::nullopt;
  if (words[1] == "*")
    formula.op = MapFormula::Op::kTimes;
  else if (words[1] == "+")
    formula.op = MapFormula::Op::kPlus;
  else if (words[1] == "/")
    formula.op = MapFormula::Op::kOver;
  else if (words[1] == "round_up")
    formula.op = MapFormula::Op::kRoundUp;
  else
    return std::nullopt;
  formula.right = words[2];
  return formula;
}

}  // namespace dckpt
