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

/// The type of words with dots between them, one of which may be {l}, the number of a layer.
Type<std::string> path_of_words() {
  return text("a name, or several with dots between them")
      .reading([](const Form& form, const Input& in, std::string& into) {
        std::vector<std::string> words = split(in.node.text, '.');
        const auto layer = std::ranges::find(words, kLayerInPath);
        if (layer != words.begin() && layer != words.end()) words.erase(layer);  // at most one
        if (in.node.kind == YamlNode::Kind::kText && !std::ranges::all_of(words, is_word))
          return in.unfit(form.expected);
        text(form.expected).read(in, into);
      });
}

/// The type of a mapping of words in config.json to the numbers that they stand for.
Type<std::map<std::string, std::string>> words() {
  using Words = std::map<std::string, std::string>;
  return Type<Words>(with_parts({.kind = Kind::kMapping, .expected = "{WORD: NUMBER}"},
                                {word("a number, or the name of one").form}))
      .reading([](const Form& form, const Input& in, Words& into) {
        if (in.node.kind != YamlNode::Kind::kMap || in.node.keys.empty())
          return in.unfit(form.expected);
        const Form& name = form.parts[0];
        for (std::size_t i = 0; i < in.node.keys.size(); ++i)
          name.read(in.of(in.node.values[i]), &into[in.node.keys[i].text]);
      })
      .showing([](const Words& words) {
        YamlNode map{.kind = YamlNode::Kind::kMap};
        for (const auto& [in_config, number] : words) {
          map.keys.push_back(YamlNode::string(in_config));
          map.values.push_back(YamlNode::string(number));
        }
        return map;
      });
}

Type<std::vector<std::string>> names() {
  return one_or_more(word("a name"), "a name, or a list of names");
}

Type<MapNumber> number() {
  const auto formula =
      text("a number, true, false, or a formula of numbers")
          .reading([](const Form& form, const Input& in, std::string& into) {
            text(form.expected).read(in, into);
            if (!into.empty() && !parse_formula(into))
              in.unfit(
                  "a number, true, false, the name of a number, or two with *, +, / or "
                  "round_up between them");
          });
  static const Schema<MapNumber> schema{
      {
          optional_field("args", &MapNumber::args, names()),
          optional_field("args_if", &MapNumber::args_if, word("the name of a flag")),
          optional_field("args_not", &MapNumber::args_not, word("the name of a flag")),
          optional_field("hf", &MapNumber::hf,
                         one_or_more(path_of_words(), "a name, or a list of names")),
          optional_field("words", &MapNumber::words, words()),
          optional_field("part_of", &MapNumber::part_of, word("the name of a number")),
          optional_field("else", &MapNumber::otherwise, formula),
      },
      [](const Input& in, const MapNumber& number) {
        if (!number.words.empty() && !number.part_of.empty())
          in.report("'words' and 'part_of' exclude each other");
      }};
  return section(schema);
}

/// The type of a mapping of names; the numbers of the extended map stay unless they are given
/// again.
Type<std::vector<MapNumber>> numbers() {
  using Numbers = std::vector<MapNumber>;
  return Type<Numbers>(with_parts({.kind = Kind::kMapping}, {number().form}))
      .reading([](const Form& form, const Input& in, Numbers& into) {
        if (in.node.kind != YamlNode::Kind::kMap || in.node.keys.size() > kMaxMapNumbers)
          return in.unfit(str_format("a mapping of at most {} names", kMaxMapNumbers));
        const Form& one = form.parts[0];
        for (std::size_t i = 0; i < in.node.keys.size(); ++i) {
          const std::string& name = in.node.keys[i].text;
          if (!is_word(name) || parse_u64(name) || parse_formula(name)->left != name) {
            in.of(in.node.keys[i]).unfit("the name of a number");
            continue;
          }
          MapNumber number{.name = name};
          one.read({in.node.values[i], str_format("{}.{}", in.path, name), in.problems}, &number);
          std::erase_if(into, [&](const MapNumber& known) { return known.name == name; });
          into.push_back(std::move(number));
        }
      })
      .showing([](const Form& form, const Numbers& numbers) {
        YamlNode map{.kind = YamlNode::Kind::kMap};
        for (const MapNumber& number : numbers) {
          map.keys.push_back(YamlNode::plain(number.name));
          map.values.push_back(form.parts[0].show(&number));
        }
        return map;
      });
}

/// The type of a list to which items are added: those of the extended map stay, each once.
template <typename T>
Type<std::vector<T>> more_of(const Type<T>& item, const char* expected) {
  return list_of(item, expected)
      .reading([](const Form& form, const Input& in, std::vector<T>& into) {
        std::vector<T> own;
        list_of(Type<T>(form.parts[0]), form.expected).read(in, own);
        for (T& one : own) {
          if (std::ranges::find(into, one) == into.end()) into.push_back(std::move(one));
        }
      });
}

/// The type of a mapping of kinds to the words for them, or a list of kinds.
Type<std::vector<MapKind>> kinds_of_layers() {
  using Layers = std::vector<MapKind>;
  const Form name = word("the name of a kind of layers").form;
  const Form words = one_or_more(text("a word"), "a word, or a list of words").form;
  const Form by_name = with_parts({.kind = Kind::kMapping}, {words});
  const Form alone = with_parts({.kind = Kind::kList}, {name});
  return Type<Layers>(with_parts({.kind = Kind::kEither}, {by_name, alone}))
      .reading([](const Form& form, const Input& in, Layers& into) {
        const bool has_words = in.node.kind == YamlNode::Kind::kMap;
        if (!has_words && in.node.kind != YamlNode::Kind::kList)
          return in.unfit("{KIND: WORDS}, or a list of kinds");
        const Form& words = form.parts[0].parts[0];
        const Form& name = form.parts[1].parts[0];
        const std::vector<YamlNode>& names = has_words ? in.node.keys : in.node.values;
        for (std::size_t i = 0; i < names.size(); ++i) {
          MapKind& kind = into.emplace_back();
          name.read(in.of(names[i]), &kind.name);
          if (has_words) words.read(in.of(in.node.values[i]), &kind.words);
        }
      })
      .showing([](const Form& form, const Layers& kinds) {
        const Form& words = form.parts[0].parts[0];
        YamlNode map{.kind = YamlNode::Kind::kMap};
        for (const MapKind& kind : kinds) {
          map.keys.push_back(YamlNode::string(kind.name));
          map.values.push_back(words.show(&kind.words));
        }
        return std::ranges::all_of(kinds, &std::vector<std::string>::empty, &MapKind::words)
                   ? YamlNode::list(std::move(map.keys))
                   : map;
      });
}

Type<MapKinds> kinds() {
  static const Schema<MapKinds> schema{
      {field("layers", &MapKinds::layers, kinds_of_layers()),
       optional_field("args", &MapKinds::args, names()),
       optional_field("hf", &MapKinds::hf, names())},
      [](const Input& in, const MapKinds& kinds) {
        if (kinds.layers.size() < 2) in.report("expected two kinds of layers or more");
        std::set<std::string> words;
        for (const MapKind& kind : kinds.layers) {
          for (const std::string& one : kind.words) {
            if (!words.insert(one).second)
              in.report(str_format("{} means two kinds of layers", quote(one)));
          }
        }
        if (words.empty() != (kinds.args.empty() && kinds.hf.empty()))
          in.report(words.empty() ? "'args' and 'hf' name lists of words, but no kind has any"
                                  : "the kinds have words, but neither 'args' nor 'hf' says "
                                    "where configurations list them");
      }};
  return section(schema);
}

Type<MapTowers> towers() {
  static const Schema<MapTowers> schema{
      {field("keys", &MapTowers::keys,
             list_of(text("what keys start with"), "a list of what keys start with")),
       optional_field("hf_text_prefix", &MapTowers::hf_text_prefix, text("what keys start with"))},
      [](const Input& in, const MapTowers& towers) {
        if (towers.keys.empty()) in.report("'keys' is missing");
      }};
  return section(schema);
}

Type<MapDequantize> dequantize() {
  auto block = list_of(word("a number, or the name of one"), "[ROWS, COLUMNS]");
  block.form.least = block.form.most = 2;
  static const Schema<MapDequantize> schema{
      {field("scales", &MapDequantize::scales, text("how the keys of scales end")),
       field("block", &MapDequantize::block, block)},
      [](const Input& in, const MapDequantize& dequantize) {
        if (dequantize.scales.empty() || dequantize.block.size() != 2)
          in.report("expected {scales: SUFFIX, block: [ROWS, COLUMNS]}");
      }};
  return section(schema);
}

Type<MapRefusal> refusal() {
  static const Schema<MapRefusal> schema{
      {field("if", &MapRefusal::only_if, word("the name of a number")),
       field("because", &MapRefusal::because, text("a sentence"))},
      [](const Input& in, const MapRefusal& refusal) {
        if (refusal.only_if.empty() || refusal.because.empty())
          in.report("expected {if: NUMBER, because: SENTENCE}");
      }};
  return section(schema);
}

Type<KeyMap> ignored() {
  const auto globs =
      more_of(text("a pattern of keys"), "a list of patterns, such as [\"optimizer.*\"]");
  static const Schema<KeyMap> schema{{
      optional_field("megatron", &KeyMap::ignore_megatron, globs),
      optional_field("left", &KeyMap::ignore_left, globs),
      field("hf", &KeyMap::ignore_hf, globs),
  }};
  return section(schema);
}

/// Takes away rows, ignored keys, extra states and refusals of the extended map. Rows and refusals
/// of this file have no file yet, so that the order of the fields does not matter.
Field<KeyMap> without() {
  return hidden<KeyMap>("without", [](const Input& in, KeyMap& map) {
    std::vector<std::string> patterns;
    list_of(text("a pattern of keys"), "a list of patterns of keys, such as [\"*.bias\"]")
        .read(in, patterns);
    for (const std::string& pattern : patterns) {
      auto taken = std::erase_if(map.tensors, [&](const MapRow& row) {
        return !row.written.file.empty() && glob_match(pattern, row.megatron);
      });
      for (auto* const inherited :
           {&map.ignore_megatron, &map.ignore_left, &map.ignore_hf, &map.extra_states})
        taken += std::erase(*inherited, pattern);
      taken += std::erase_if(map.refuse, [&](const MapRefusal& refusal) {
        return !refusal.written.file.empty() && refusal.only_if == pattern;
      });
      if (taken == 0)
        in.report(
            str_format("the extended map has no row with a key on the left like {}, no pattern of "
                       "'ignore' or 'extra_states' that is equal, and does not 'refuse' models by "
                       "a number of this name",
                       quote(pattern)));
    }
  });
}

/// Another spelling of `dequantize`, which is understood but not shown.
Field<KeyMap> dequantise() {
  auto spelling = field("dequantise", &KeyMap::dequantize, dequantize());
  spelling.any.hidden = true;
  return spelling;
}

}  // namespace

const config::Type<KeyMap>& key_map_type() {
  static const Schema<KeyMap> schema{
      {
          Field<KeyMap>(version_field("maps")),
          Field<KeyMap>(extends_field("the name of a map that comes with dckpt, or a file")),
          without(),
          field("family", &KeyMap::family, word("the name of a family of models")),
          optional_field("left", &KeyMap::left, text("the name of a trainer")),
          optional_field("layout", &KeyMap::layout, optional_of(choice(kMegatronLayoutNames))),
          optional_field("extra_state", &KeyMap::extra_state, optional_of(flag())),
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
          dequantise(),
          field("tensors", &KeyMap::tensors, map_rows_type()),
          optional_field("extra_states", &KeyMap::extra_states,
                         more_of(pattern(), "a list of modules")),
          optional_field("refuse", &KeyMap::refuse,
                         more_of(refusal(), "a list of {if: NUMBER, because: SENTENCE}")),
          whole("ignore", ignored()),
      },
      [](const Input& in, const KeyMap& map) {
        require_version(in);
        if (in.node.find("dequantize") != nullptr && in.node.find("dequantise") != nullptr)
          in.report("'dequantize' is there twice, in two spellings; keep one");
        if (map.family.empty()) in.report("'family' is missing");
      }};
  static const Type<KeyMap> type = section(schema);
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
