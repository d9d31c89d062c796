#include "migration/maps/numbers/map_numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "configs/maps/key_map_schema.h"
#include "configs/yaml/yaml.h"
#include "mapping/base/error.h"
#include "migration/maps/numbers/rotary_order.h"
#include "migration/maps/numbers/weight_arguments.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr const char* kHfConfig = "config.json";
constexpr const char* kRunConfig = "run_config.yaml";
/// The argument of Megatron that has a config.json as text, from which it takes what layers are.
constexpr const char* kHfInArgs = "heterogeneous_layers_config_encoded_json";
/// The section of it that Megatron cannot do without.
constexpr const char* kBlocks = "block_configs";
constexpr const char* kOfMap = "by the map";
constexpr const char* kAsSet = "as set";
constexpr const char* kAsShown = "as the tensors show";
/// Entries that transformers reads at the top level of a model of text and images.
constexpr std::array kOfWholeModel{"tie_word_embeddings"};
constexpr std::array kTrue{"true", "True", "TRUE"};
constexpr std::array kFalse{"false", "False", "FALSE"};
constexpr std::uint64_t kMaxHfConfig = std::uint64_t{4} << 20;
constexpr std::size_t kMostDigits = 5;  // of a layer's number
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 48;

/// Returns the attributes of a Namespace, or a dict itself.
Value attributes(const Value* value) {
  if (value == nullptr) return {};
  if (value->is_dict()) return *value;
  if (!value->is(Value::Kind::kOpaque)) return {};
  const Opaque& object = value->as_opaque();
  return object.states.size() == 1 && object.states.front().is_dict() ? object.states.front()
                                                                      : Value();
}

std::optional<double> parse_decimal(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && rest == end ? std::optional(value) : std::nullopt;
}

/// Returns a plain value; none for nested ones. Whatever a YAML file may not have here becomes a
/// text of its own, so that it is not taken for none.
Value plain_value(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kRefused) return "what an anchor, alias or tag says";
  if (node.kind != YamlNode::Kind::kText) return {};
  if (node.quoted) return node.text;
  for (const bool truth : {true, false}) {
    for (const char* const spelling : truth ? kTrue : kFalse) {
      if (node.text == spelling) return truth;
    }
  }
  if (const auto number = parse_u64(node.text)) return *number;
  if (const auto part = parse_decimal(node.text)) return *part;
  return node.text;
}

Value plain_values(const YamlNode& map) {
  Value dict = Value::dict();
  for (std::size_t i = 0; i < map.keys.size(); ++i)
    dict[map.keys[i].text] = plain_value(map.values[i]);
  return dict;
}

/// Returns the value at a path such as "quantization_config.weight_block_size.0"; null if there is
/// none.
const Value* find_path(const Value& config, const std::string& path) {
  const Value* at = &config;
  for (const std::string& name : split(path, '.')) {
    if (at->is_list()) {
      const auto position = parse_u64(name);
      if (!position || *position >= at->items().size()) return nullptr;
      at = &at->items()[*position];
    } else {
      const Value* found = at->find(name);
      // transformers numbers layers with leading zeros: "per_layer_config": {"00": …}
      for (std::string padded = "0" + name;
           found == nullptr && padded.size() <= kMostDigits && parse_u64(name);
           padded.insert(0, "0"))
        found = at->find(padded);
      if (found == nullptr) return nullptr;
      at = found;
    }
  }
  return at;
}

CheckpointError mismatch(const std::string& message) {
  return {ErrorCode::kMismatch, message};
}

/// Returns the number in a configuration's value; empty for none, and for lists and dicts, which
/// say it by layer. Throws CheckpointError (mismatch) for texts and fractions.
std::optional<KnownNumber> number_of(const Value* value, const std::string& origin) {
  if (value == nullptr) return std::nullopt;
  if (value->is(Value::Kind::kBool)) return KnownNumber{value->as_bool() ? 1 : 0, true, origin};
  if (value->is_int()) return KnownNumber{value->as_int(), false, origin};
  const auto unfit = [&](const std::string& shown) {
    return mismatch(str_format("{} is {}, expected an integer, true or false", origin, shown));
  };
  if (value->is_str()) throw unfit("the text " + quote(value->as_str()));
  if (!value->is(Value::Kind::kFloat)) return std::nullopt;
  const double number = value->as_float();
  if (number != std::floor(number) || std::abs(number) > static_cast<double>(kMaxNumber))
    throw unfit(str_format("{}", number));
  return KnownNumber{static_cast<std::int64_t>(number), false, origin};
}

/// Returns the paths under which config.json may state a number, in the order in which they are
/// read: the configuration of a text model comes first. Without `layer`, paths with {l} are left
/// out.
std::vector<std::string> paths_of(const MapNumber& number, std::optional<std::int64_t> layer) {
  std::vector<std::string> paths;
  for (std::string path : number.hf) {
    if (const std::size_t at = path.find(kLayerInPath); at != path.npos) {
      if (!layer) continue;
      path.replace(at, std::string_view(kLayerInPath).size(), std::to_string(*layer));
    }
    const std::string in_text = str_format("{}.{}", kHfTextConfig, path);
    const bool top_first = std::ranges::find(kOfWholeModel, path) != kOfWholeModel.end();
    paths.push_back(top_first ? path : in_text);
    paths.push_back(top_first ? in_text : path);
  }
  return paths;
}

/// Returns a path without the section of a text model, as messages name it.
std::string without_section(const std::string& path) {
  const std::string section = str_format("{}.", kHfTextConfig);
  return path.starts_with(section) ? path.substr(section.size()) : path;
}

std::optional<KnownNumber> number_of(const std::string& text, const std::string& origin) {
  if (text == "true" || text == "false") return KnownNumber{text == "true" ? 1 : 0, true, origin};
  if (const auto number = parse_u64(text);
      number && *number <= static_cast<std::uint64_t>(kMaxNumber))
    return KnownNumber{static_cast<std::int64_t>(*number), false, origin};
  return std::nullopt;
}

/// Returns the share that yields `count` of `whole` when it is rounded down.
double part_that_is(std::int64_t count, std::int64_t whole) {
  const double part = static_cast<double>(count) / static_cast<double>(whole);
  return part * static_cast<double>(whole) < static_cast<double>(count) ? std::nextafter(part, 2)
                                                                        : part;
}

/// Evaluates numbers and formulas that refer to each other, those of the whole model or of a layer.
class Evaluation {
 public:
  Evaluation(const KeyMap& map, const ModelConfig& config,
             const std::map<std::string, std::string>& given,
             std::map<std::string, KnownNumber>& known, std::vector<std::string>& overridden,
             std::optional<std::int64_t> layer = {})
      : map_(map),
        config_(config),
        given_(given),
        known_(known),
        overridden_(overridden),
        layer_(layer) {}

  std::optional<KnownNumber> evaluate(const std::string& name) {
    if (const auto literal = number_of(name, kOfMap)) return literal;
    if (const auto found = known_.find(name); found != known_.end()) return found->second;
    const MapNumber* const number = map_.find_number(name);
    if (number == nullptr || !open_.insert(name).second) return std::nullopt;
    if (!layer_ && !given_.contains(name) && map_.differs_by_layer(name)) return std::nullopt;
    std::optional<KnownNumber> result = look_up(*number);
    open_.erase(name);
    if (!result) return std::nullopt;
    if (result->value < 0 || result->value > kMaxNumber)
      throw mismatch(str_format("{} is {} ({})", name, result->value, result->origin));
    return known_.emplace(name, *std::move(result)).first->second;
  }

 private:
  std::optional<KnownNumber> look_up(const MapNumber& number) {
    if (const auto given = given_.find(number.name); given != given_.end()) {
      auto value = number_of(given->second, kAsSet);
      if (!value)
        throw_error(ErrorCode::kInvalidArgument,
                    "{} is set to {}, expected a number, true or false", number.name,
                    quote(given->second));
      for (const auto& other : said(number)) {
        if (other && other->value != value->value)
          overridden_.push_back(str_format("{} is {} as set, not {} ({})", number.name,
                                           value->value, other->value, other->origin));
      }
      return value;
    }
    const auto [megatron, hf] = said(number);
    if (megatron && hf && megatron->value != hf->value)
      throw mismatch(
          str_format("{} is {} ({}), but {} ({}): they are of different models; give it "
                     "with --set if one of them is wrong",
                     number.name, megatron->value, megatron->origin, hf->value, hf->origin));
    if (megatron) return megatron;
    if (hf) return hf;
    return number.otherwise.empty() ? std::nullopt : result_of(number.otherwise);
  }

  /// Returns the numbers given by Megatron's side and by Hugging Face's.
  std::array<std::optional<KnownNumber>, 2> said(const MapNumber& number) {
    std::optional<KnownNumber> megatron = in_megatron(number, config_.args, "args");
    if (!megatron) megatron = in_megatron(number, config_.run_config, kRunConfig);
    if (!megatron) megatron = in_hf(number, config_.hf_in_args, kHfInArgs);
    return {std::move(megatron), in_hf(number, config_.hf, kHfConfig)};
  }

  std::optional<KnownNumber> in_hf(const MapNumber& number, const Value& hf,
                                   const std::string& where) {
    for (const std::string& path : paths_of(number, layer_)) {
      if (auto found = value_of(number, find_path(hf, path),
                                str_format("{} of {}", without_section(path), where)))
        return found;
    }
    return std::nullopt;
  }

  std::optional<KnownNumber> in_megatron(const MapNumber& number, const Value& values,
                                         const std::string& where) {
    if (!number.args_if.empty()) {
      const auto flag = number_of(values.find(number.args_if), "");
      if (flag && flag->value == 0) return std::nullopt;
    }
    for (const std::string& wanted : number.args) {
      const auto [name, value] = find_argument(values, wanted);
      if (auto found = value_of(number, value, str_format("{} of {}", name, where))) return found;
    }
    if (number.args_not.empty()) return std::nullopt;
    auto opposite = number_of(values.find(number.args_not), number.args_not + " of " + where);
    if (opposite) opposite->value = opposite->value == 0 ? 1 : 0;
    return opposite;
  }

  /// Returns the number that a word stands for, or a value, rounded down, if it is a part of
  /// another number, as in Megatron and transformers.
  std::optional<KnownNumber> value_of(const MapNumber& number, const Value* value,
                                      const std::string& origin) {
    if (!number.words.empty()) {
      const bool is_flag = value != nullptr && value->is(Value::Kind::kBool);
      if (value == nullptr || (!value->is_str() && !is_flag)) return std::nullopt;
      const std::string word = is_flag ? value->as_bool() ? "true" : "false" : value->as_str();
      const auto meant = number.words.find(word);
      if (meant != number.words.end()) return evaluate(meant->second);
      throw mismatch(str_format("{} is {} ({}), a word for which the map has no number",
                                number.name, quote(word), origin));
    }
    if (number.part_of.empty()) return number_of(value, origin);
    if (value == nullptr || !(value->is_int() || value->is(Value::Kind::kFloat)))
      return std::nullopt;
    const double part = value->as_float();
    const std::optional<KnownNumber> whole = evaluate(number.part_of);
    if (!(part >= 0 && part <= 1) || (!whole && part != 1))
      throw mismatch(str_format("{} is {} of {} ({}){}", number.name, part, number.part_of, origin,
                                whole ? ", expected a part from 0 to 1" : ", which is not known"));
    if (!whole) return std::nullopt;
    return KnownNumber{static_cast<std::int64_t>(part * static_cast<double>(whole->value)), false,
                       str_format("{} of {}, by {}", part, number.part_of, origin)};
  }

  std::optional<KnownNumber> result_of(const std::string& text) {
    const auto formula = parse_formula(text);
    if (!formula) return std::nullopt;
    std::optional<KnownNumber> left = evaluate(formula->left);
    if (formula->op == MapFormula::Op::kNone) return left;
    const std::optional<KnownNumber> right = evaluate(formula->right);
    if (formula->op == MapFormula::Op::kTimes && right && right->value == 0)
      return KnownNumber{0, false, text};  // a factor of false need not be known
    if (!left || !right) return std::nullopt;
    const std::int64_t a = left->value;
    const std::int64_t b = right->value;
    std::int64_t result = 0;
    bool overflow = false;
    if (formula->op == MapFormula::Op::kTimes) {
      overflow = __builtin_mul_overflow(a, b, &result);
    } else if (formula->op == MapFormula::Op::kPlus) {
      overflow = __builtin_add_overflow(a, b, &result);
    } else if (b == 0 || (formula->op == MapFormula::Op::kOver && a % b != 0)) {
      throw mismatch(str_format("{}: {} is {} ({}) and {} is {} ({})", text, formula->left, a,
                                left->origin, formula->right, b, right->origin));
    } else if (formula->op == MapFormula::Op::kOver) {
      result = a / b;
    } else {
      overflow = __builtin_mul_overflow(a / b + (a % b != 0 ? 1 : 0), b, &result);
    }
    if (overflow) throw mismatch(str_format("{} is too large", text));
    return KnownNumber{result, false, text};
  }

  const KeyMap& map_;
  const ModelConfig& config_;
  const std::map<std::string, std::string>& given_;
  std::map<std::string, KnownNumber>& known_;
  std::vector<std::string>& overridden_;
  std::optional<std::int64_t> layer_;
  std::set<std::string> open_;
};

}  // namespace

ModelConfig model_config(const CheckpointReader& reader, const Storage* model_files) {
  ModelConfig config;
  const Value common = reader.common_state();
  config.args = attributes(common.find("args"));
  const Storage& storage = reader.storage();
  const Storage& folder = model_files != nullptr ? *model_files : storage;
  if (folder.stat(kHfConfig)) {
    const auto file = folder.open(kHfConfig);
    config.hf = parse_json(read_file(*file, kMaxHfConfig), file->name());
  }
  if (storage.stat(kRunConfig)) {
    ConfigProblems problems;  // problems of other sections, if there is a document
    const auto file = storage.open(kRunConfig);
    const Bytes text = read_file(*file, kMaxYamlBytes);
    const auto root = parse_yaml(as_text(text), problems);
    if (!root) raise_if_any(std::move(problems), file->name());
    const YamlNode* const model = root ? root->find("model") : nullptr;
    if (model != nullptr) config.run_config = plain_values(*model);
  }
  for (const Value* const megatron : {&config.run_config, &config.args}) {
    const Value* const text = megatron->find(kHfInArgs);
    if (text != nullptr && text->is_str() && !text->as_str().empty())
      config.hf_in_args =
          parse_json(as_bytes(text->as_str()), kHfInArgs, {.max_bytes = kMaxHfConfig});
  }
  return config;
}

MapNumbers::MapNumbers(const KeyMap& map, const ModelConfig& config,
                       const std::map<std::string, std::string>& given)
    : map_(&map), config_(config) {
  std::vector<std::string> names;
  for (const MapNumber& number : map.numbers) names.push_back(number.name);
  for (const auto& [name, value] : given) {
    if (map.find_number(name) != nullptr) continue;
    std::vector<std::string> all = names;
    all.insert(all.end(), kMapSettings.begin(), kMapSettings.end());
    const auto close = nearest(name, all);
    throw_error(ErrorCode::kInvalidArgument, "the map {} has no number {}{}; there are {}",
                quote(map.family), quote(name),
                close ? str_format(" (did you mean {}?)", quote(*close)) : "",
                quoted_list(all, all.size()));
  }
  if (const auto type = type_with_rotary_neighbors(map, config.hf);
      type && !given.contains(kHfRotaryInterleaved))
    known_[kHfRotaryInterleaved] = {1, true, *type};
  Evaluation evaluation(map, config, given, known_, overridden_);
  for (const std::string& name : names) evaluation.evaluate(name);
}

MapNumbers MapNumbers::of_layer(std::int64_t layer) const {
  MapNumbers result = *this;
  const std::map<std::string, std::string> given;  // these are known already
  Evaluation evaluation(*map_, config_, given, result.known_, result.overridden_, layer);
  for (const MapNumber& number : map_->numbers) evaluation.evaluate(number.name);
  return result;
}

std::optional<std::int64_t> MapNumbers::find(const std::string& name) const {
  if (const auto literal = number_of(name, "")) return literal->value;
  const auto found = known_.find(name);
  return found == known_.end() ? std::nullopt : std::optional(found->second.value);
}

std::int64_t MapNumbers::require(const std::string& name) const {
  if (const auto found = find(name)) return *found;
  const MapNumber* const number = map_->find_number(name);
  std::string sources;
  const auto add = [&](const std::string& source) {
    sources += (sources.empty() ? "" : ", ") + source;
  };
  if (number != nullptr) {
    for (const std::string& arg : number->args) add(arg + " of args");
    for (const std::string& key : number->hf) add(key + " of config.json");
    if (!number->otherwise.empty()) add(number->otherwise);
  }
  const bool lacks_config = number != nullptr && !number->hf.empty() && config_.hf.is_none();
  throw UnknownNumber(
      ErrorCode::kMismatch,
      str_format("{} is not known ({}); give it with --set {}=NUMBER{}", name,
                 sources.empty() ? "no checkpoint has it" : "looked for: " + sources, name,
                 lacks_config ? ", or the folder of a config.json with --model-files" : ""));
}

std::string MapNumbers::describe(const std::string& name) const {
  if (number_of(name, "")) return name;
  const auto found = known_.find(name);
  if (found == known_.end()) return name + " is not known";
  const std::string value = !found->second.flag        ? std::to_string(found->second.value)
                            : found->second.value != 0 ? "true"
                                                       : "false";
  return str_format("{} is {} ({})", name, value, found->second.origin);
}

void MapNumbers::guess(const std::string& name, bool value) {
  const auto found = known_.find(name);
  if (found != known_.end() && found->second.origin != kOfMap) return;
  known_[name] = {value ? 1 : 0, true, kAsShown};
}

void MapNumbers::set(const std::string& name, std::int64_t value) {
  known_[name] = {value, false, kAsSet};
}

Value MapNumbers::as_args() const {
  Value args = Value::dict();
  for (const MapNumber& number : map_->numbers) {
    const auto found = known_.find(number.name);
    if (found == known_.end()) continue;
    const KnownNumber& known = found->second;
    if (!number.part_of.empty()) {
      const auto whole = known_.find(number.part_of);
      if (!number.args.empty() && whole != known_.end() && whole->second.value != 0)
        args[number.args.front()] = part_that_is(known.value, whole->second.value);
    } else if (!number.args.empty() && number.args_not.empty())
      args[number.args.front()] = known.flag ? Value(known.value != 0) : Value(known.value);
    if (!number.args_if.empty()) args[number.args_if] = true;
    if (!number.args_not.empty()) args[number.args_not] = known.value == 0;
  }
  if (std::ranges::any_of(map_->numbers, &MapNumber::is_by_layer) &&
      config_.hf.find(kBlocks) != nullptr)
    args[kHfInArgs] = to_json(config_.hf);
  return args;
}

std::vector<ConfigEntry> MapNumbers::config_entries() const {
  std::vector<ConfigEntry> entries;
  if (!config_.hf.is_dict()) return entries;
  for (const MapNumber& number : map_->numbers) {
    const auto found = known_.find(number.name);
    const bool is_of_source =  // it describes the scales of quantized weights, which are gone
        std::ranges::find(map_->dequantize.block, number.name) != map_->dequantize.block.end();
    if (found == known_.end() || is_of_source) continue;
    const KnownNumber& known = found->second;
    const auto usual = number_of(number.otherwise, kOfMap);
    const bool is_shown = known.origin == kAsShown && (usual ? usual->value : 0) != known.value;
    if (known.origin != kAsSet && !is_shown) continue;
    const std::vector<std::string> paths = paths_of(number, std::nullopt);
    const auto stated = std::ranges::find_if(paths, [&](const std::string& path) {
      const Value* const value = find_path(config_.hf, path);
      return value != nullptr && !value->is_none();
    });
    const auto place =
        stated != paths.end() ? stated : std::ranges::find_if(paths, [&](auto& path) {
          const std::size_t dot = path.rfind('.');
          const Value* const section =
              dot == path.npos ? &config_.hf : find_path(config_.hf, path.substr(0, dot));
          return section != nullptr && section->is_dict();
        });
    if (place == paths.end()) continue;
    const Value* const before = find_path(config_.hf, *place);
    const auto value = stated_value(number, known, before);
    if (value && (before == nullptr || *before != *value)) entries.push_back({*place, *value});
  }
  return entries;
}

std::optional<Value> MapNumbers::stated_value(const MapNumber& number, const KnownNumber& known,
                                              const Value* before) const {
  if (!number.words.empty()) {
    const auto word = std::ranges::find_if(
        number.words, [&](const auto& entry) { return find(entry.second) == known.value; });
    if (word == number.words.end()) return std::nullopt;
    if (word->first == "true" || word->first == "false") return Value(word->first == "true");
    return Value(word->first);
  }
  if (!number.part_of.empty()) {
    const auto all = find(number.part_of);
    if (!all || *all == 0) return std::nullopt;
    return Value(part_that_is(known.value, *all));
  }
  const bool is_flag = known.flag || (before != nullptr && before->is(Value::Kind::kBool));
  return is_flag ? Value(known.value != 0) : Value(known.value);
}

void set_entry(Value& config, const ConfigEntry& entry) {
  const std::size_t dot = entry.path.find('.');
  const std::string name = entry.path.substr(0, dot);
  if (config.is_list()) {
    const auto position = parse_u64(name);
    if (!position || *position >= config.items().size()) return;
    Value& item = config.mutable_items()[*position];
    if (dot == entry.path.npos)
      item = entry.value;
    else
      set_entry(item, {entry.path.substr(dot + 1), entry.value});
  } else if (dot == entry.path.npos) {
    config[name] = entry.value;
  } else if (Value* const section = config.mutable_dict().find(name)) {
    set_entry(*section, {entry.path.substr(dot + 1), entry.value});
  }
}

const std::string& inactive_by(const MapRow& row, const MapNumbers& numbers) {
  static const std::string none;
  if (!row.stated_by.empty() && numbers.find(row.stated_by) == 0) return row.stated_by;
  if (!row.only_if.empty() && !numbers.is_true(row.only_if)) return row.only_if;
  if (!row.unless.empty() && numbers.is_true(row.unless)) return row.unless;
  return none;
}

}  // namespace dckpt
