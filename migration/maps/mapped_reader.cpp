#include "migration/maps/mapped_reader.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "configs/maps/key_pattern.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/megatron/model_keys.h"
#include "migration/maps/findings/close_maps.h"
#include "migration/maps/findings/map_findings.h"
#include "migration/maps/numbers/quantization_config.h"
#include "migration/maps/numbers/shipped_map.h"
#include "migration/maps/sides/map_settings.h"
#include "strategies/contract/common_state.h"
#include "strategies/views/converted_reader.h"
#include "strategies/views/dequantized_reader.h"
#include "strategies/views/quantized_reader.h"
#include "strategies/views/rearranged_reader.h"

namespace dckpt {
namespace {

KeyMap map_for(const Value& config, const Metadata& source) {
  if (auto map = shipped_map_of_text(config)) return *std::move(map);
  const Value* const type = config.find("model_type");
  std::vector<std::string> names;
  for (const ShippedPolicy& shipped : shipped_maps()) names.emplace_back(shipped.name);
  throw_error(
      ErrorCode::kUnsupported,
      type != nullptr && type->is_str()
          ? str_format("no map is shipped for the model type {}; name one of {}, or a file (see "
                       "docs/maps.md){}",
                       quote(type->as_str()), quoted_list(names, names.size()),
                       closest_maps(source))
          : str_format("there is no config.json that says which model this is; name a map: {}{}",
                       quoted_list(names, names.size()), closest_maps(source)));
}

Value namespace_of(Value attributes) {
  return Opaque{.form = Opaque::Form::kNew,
                .callable = Global{"argparse", "Namespace"},
                .states = {std::move(attributes)}};
}

void set_layout(Value& content_metadata, MegatronLayout layout) {
  content_metadata["singleton_local_shards"] = layout == MegatronLayout::kSingleton;
  constexpr const char* kApart = "non_homogeneous_layers";
  if (layout == MegatronLayout::kNonHomogeneous)
    content_metadata[kApart] = true;
  else
    content_metadata.mutable_dict().erase(kApart);
}

/// Returns the common state that Megatron needs to start from weights (--finetune), and from which
/// the way back takes numbers. Flags that no configuration gives are as the tensors show them.
Value megatron_common(MapNumbers numbers, const MappedKeys& keys) {
  for (const auto& [name, value] : keys.sides.flags) numbers.guess(name, value);
  Value args = numbers.as_args();
  args["tensor_model_parallel_size"] = 1;
  args["pipeline_model_parallel_size"] = 1;
  if (keys.counts.padded_rows) args["padded_vocab_size"] = *keys.counts.padded_rows;
  if (keys.counts.mtp_layers)  // Megatron says none for none, whatever config.json says
    args["mtp_num_layers"] = *keys.counts.mtp_layers > 0 ? Value(*keys.counts.mtp_layers) : Value();
  Value content_metadata = Value::dict();
  set_layout(content_metadata, keys.sides.to_layout);
  return Value::dict({{"args", namespace_of(std::move(args))},
                      {"checkpoint_version", 3.0},
                      {"iteration", 0},
                      {kContentMetadataKey, std::move(content_metadata)}});
}

bool is_extra_state(const std::string& key) {
  return key.find("._extra_state/") != key.npos;
}

/// Returns the pattern of an object's key: "decoder.layers.{}.mlp.linear_fc1._extra_state".
std::string kind_of_object(const std::string& key) {
  return skeleton_of(key.substr(0, key.find('/')));
}

/// A stored tensor with zeros behind its first `rows`.
RearrangedTensor without_padding(const Metadata& metadata, std::uint32_t position,
                                 std::optional<std::int64_t> rows) {
  const TensorStorageMetadata& tensor = metadata.tensors[position];
  RearrangedTensor result{
      .key = tensor.key, .properties = tensor.properties, .size = tensor.global_shape()};
  Box all = whole(result.size);
  if (rows && *rows < result.size.front()) {
    Box padding = all;
    padding.offsets.front() = *rows;
    padding.sizes.front() -= *rows;
    all.sizes.front() = *rows;
    result.parts.push_back({.elements = TensorPart::Elements::kZeros, .target = padding});
  }
  result.parts.push_back({.target = all, .tensor = position, .source = all});
  return result;
}

std::unique_ptr<CheckpointReader> converted(
    std::unique_ptr<CheckpointReader> source,
    std::map<std::uint32_t, ElementConversion> conversions) {
  if (conversions.empty()) return source;
  return converted_reader(std::move(source), std::move(conversions));
}

/// Returns which of Hugging Face's tensors are weights of linear layers that can be quantized.
/// Weights of towers are not among them.
std::vector<bool> linear_weights(const KeyMap& map, const MappedKeys& keys,
                                 const std::vector<TensorStorageMetadata>& tensors) {
  std::vector<bool> chosen(tensors.size(), false);
  for (std::size_t i = 0; i < tensors.size() && keys.sides.to == KeyNames::kHf; ++i) {
    const std::string& name = map.tensors[keys.rows.at(i)].megatron;
    chosen[i] = name.find(".linear_") != name.npos && name.ends_with(".weight") &&
                !map.towers.have(name) && tensors[i].key.ends_with(".weight") &&
                can_quantize(tensors[i]);
  }
  return chosen;
}

/// Returns the naming scheme of a source whose keys are those of both: that of its writer, and not
/// that of the result, which is `wanted` or otherwise that which its readers expect. Empty if
/// nothing tells, or if these contradict each other.
std::optional<KeyNames> presumed_names(const KeyMap& map, const CheckpointReader& source,
                                       const ModelConfig& config, std::optional<KeyNames> wanted,
                                       const MapContext& context) {
  std::optional<KeyNames> of_writer, of_result;
  const bool is_folder = source.info().conventions.model_folder;
  if (!config.args.is_none() || !config.run_config.is_none())
    of_writer = KeyNames::kMegatron;
  else if (is_folder)
    of_writer = KeyNames::kHf;
  if (!map.is_megatrons()) {
    // Any trainer may write any format, so that of the source tells nothing by itself.
    const bool to_hf = wanted ? *wanted == KeyNames::kHf : context.to_model_folder.value_or(false);
    const bool to_trainer = !wanted && !context.to_model_folder.value_or(true);
    return to_hf && !is_folder       ? std::optional(KeyNames::kMegatron)
           : to_trainer && is_folder ? std::optional(KeyNames::kHf)
                                     : std::nullopt;
  }
  // Megatron's keys on request may be those of another layout.
  if (wanted.value_or(context.to.value_or(KeyNames::kMegatron)) == KeyNames::kHf)
    of_result = KeyNames::kMegatron;
  else if (!wanted && context.to)
    of_result = KeyNames::kHf;
  return of_writer && of_result && *of_writer != *of_result ? std::nullopt
         : of_writer                                        ? of_writer
                                                            : of_result;
}

/// A map, and a checkpoint that it is applied to.
class Mapping {
 public:
  Mapping(const CheckpointReader& source, const KeyMapOptions& options, MapContext context = {})
      : settings_(parse_settings(options.set)), config_(model_config(source, context.model_files)) {
    settings_.target.left_out = std::move(context.left_out);
    if (context.map != nullptr)
      map_ = *context.map;
    else
      map_ = options.name == kAutoMap ? map_for(config_.hf, source.metadata())
                                      : KeyMap::find(options.name);
    settings_.target.presumed =
        presumed_names(map_, source, config_, settings_.target.names, context);
    numbers_.emplace(map_, config_, settings_.numbers);
  }

  /// Returns how closely the map fits a conversion of Megatron's keys to Hugging Face's: the number
  /// of rows that every model of the map has and this one uses, then the negative number of rows
  /// that it does not use. Throws if the map does not fit.
  std::pair<std::ptrdiff_t, std::ptrdiff_t> closeness(const Metadata& source) const {
    const MappedKeys keys = apply_key_map(map_, *numbers_, source, settings_.target);
    if (keys.sides.from != KeyNames::kMegatron || keys.sides.to != KeyNames::kHf)
      throw_error(ErrorCode::kMismatch, "the keys are not Megatron's");
    const std::set<std::size_t> used(keys.rows.begin(), keys.rows.end());
    return {
        std::ranges::count_if(used, [&](std::size_t row) { return !map_.tensors[row].optional; }),
        std::ssize(used) - std::ssize(map_.tensors)};
  }

  /// Returns a reader with values in place of quantized weights.
  std::unique_ptr<CheckpointReader> dequantized(std::unique_ptr<CheckpointReader> source,
                                                QuantizedKeys* keys = nullptr) const {
    const MapDequantize& map = map_.dequantize;
    if (!is_quantized(source->metadata(), map.scales)) return source;
    QuantizationConfig described = quantization_config(config_.hf);
    BlockScales scales{.suffix = map.scales,
                       .dtype = values(),
                       .part = described.part,
                       .group_sizes = std::move(described.group_sizes),
                       .bits = std::move(described.bits),
                       .is_ignored = [this](const std::string& key) {
                         return std::ranges::any_of(map_.ignore_hf, [&](const std::string& glob) {
                           return glob_match(glob, key);
                         });
                       }};
    if (!map.scales.empty()) {
      scales.rows = numbers_->require(map.block[0]);
      scales.columns = numbers_->require(map.block[1]);
    }
    return dequantized_reader(std::move(source), scales, keys);
  }

  std::unique_ptr<CheckpointReader> apply(std::unique_ptr<CheckpointReader> source,
                                          MapReport& report) const {
    require_request(source->metadata());
    QuantizedKeys weights;
    source = dequantized(std::move(source), &weights);
    report.dequantized = weights.size();
    report.keys = apply_key_map(map_, *numbers_, source->metadata(), settings_.target);
    check_norms(report);
    note_config(report);
    report.copies = dropped_copies(map_, report.keys, source->metadata());
    return reader(std::move(source), report);
  }

  /// Returns what apply() has made with codes and scales in place of the weights of linear layers,
  /// except those of towers, if a setting asks for them.
  std::unique_ptr<CheckpointReader> quantized(std::unique_ptr<CheckpointReader> mapped,
                                              MapReport& report) const {
    if (!settings_.fp8) return mapped;
    const std::vector<bool> chosen = linear_weights(map_, report.keys, mapped->metadata().tensors);
    const auto count = static_cast<std::uint64_t>(std::ranges::count(chosen, true));
    if (count == 0)
      throw_error(ErrorCode::kUnsupported,
                  "quantize=fp8 is for Hugging Face's keys and for weights of linear "
                  "layers, of which the result has none; leave it out");
    report.findings.push_back(
        {FindingCode::kValuesRounded,
         str_format("quantized: {} float8 now, with a scale for each block of {} × {}; a round "
                    "trip compares the weights before",
                    counted(count, "weight is", "weights are"), kFp8Block, kFp8Block)});
    return quantized_reader(std::move(mapped), chosen);
  }

  /// Returns the reverse of apply(), whose report is `report`.
  std::unique_ptr<CheckpointReader> undo(std::unique_ptr<CheckpointReader> mapped,
                                         const MapReport& report) const {
    MapNumbers numbers = *numbers_;
    if (report.keys.counts.padded_rows)
      numbers.set("padded_vocab_size", *report.keys.counts.padded_rows);
    MappedKeys back = undone(numbers, mapped->metadata(), report.keys);
    for (RearrangedTensor& tensor : back.tensors)
      tensor.key = report.keys.sides.prefix.stored_key(tensor.key);
    return rearranged_reader(converted(std::move(mapped), std::move(back.conversions)),
                             {.tensors = std::move(back.tensors), .common = Value()});
  }

  std::optional<MapRule> rule_for(std::unique_ptr<CheckpointReader> source,
                                  const std::string& key) const {
    MapRule rule{.map = map_.family};
    const std::set<std::string> stored = keys_of(source->metadata());
    QuantizedKeys weights;
    source = dequantized(std::move(source), &weights);
    std::string weight = key;
    for (const auto& [made, parts] : weights) {
      if (std::ranges::find(parts, key) != parts.end()) weight = made;
    }
    const std::vector<TensorStorageMetadata>& tensors = source->metadata().tensors;
    const MappedKeys keys = apply_key_map(map_, *numbers_, source->metadata(), settings_.target);
    std::set<std::string> from;
    for (std::size_t i = 0; i < keys.tensors.size(); ++i) {
      const RearrangedTensor& made = keys.tensors[i];
      std::set<std::string> sources;
      for (const TensorPart& part : made.parts) {
        if (part.elements != TensorPart::Elements::kZeros) sources.insert(tensors[part.tensor].key);
      }
      if (made.key != key && !sources.contains(weight)) continue;
      const MapRow& row = map_.tensors[keys.rows[i]];
      rule.row = row.megatron;
      rule.file = row.written.file;
      rule.line = row.written.place.line;
      rule.to.push_back(made.key);
      from.merge(sources);
    }
    for (const std::string& source_key : from) {
      const auto parts = weights.find(source_key);
      if (parts == weights.end())
        rule.from.push_back(source_key);
      else
        rule.from.insert(rule.from.end(), parts->second.begin(), parts->second.end());
    }
    if (!rule.to.empty()) return rule;
    for (const AlikeKeys& dropped : keys.left.dropped) {
      if (stored.contains(key) && std::ranges::find(dropped.keys, key) != dropped.keys.end())
        rule.dropped = dropped.why;
    }
    return rule.dropped.empty() ? std::nullopt : std::optional(std::move(rule));
  }

 private:
  /// Refuses forms of quantized weights that cannot be read, and weights of 4 bits, whose values
  /// take four times their bytes, unless a setting names the dtype of the values.
  void require_request(const Metadata& source) const {
    if (const std::string form = unreadable_form(source); !form.empty())
      throw_error(ErrorCode::kUnsupported,
                  "the weights are quantized by {}, which maps do not read; convert the model "
                  "that they were made of, or have the library that made them write ordinary "
                  "weights. Without a map the checkpoint is copied as it is",
                  form);
    const FourBitForm* const form = four_bit_form(source);
    if (form == nullptr || settings_.values || settings_.target.dtype) return;
    throw_error(ErrorCode::kInvalidArgument,
                "the weights are {}, codes of 4 bits with scales, of which the map {} can only "
                "use the values; --set dequantize=bfloat16 computes them, with 2 bytes each, "
                "and without a map the checkpoint is copied as it is",
                form->name, quote(map_.family));
  }

  /// Refuses a map for norms of the other kind, and notes those that can be probed. A map of one's
  /// own for the model type decides what Megatron's weights are to mean.
  void check_norms(MapReport& report) const {
    if (!map_.is_megatrons()) return;
    if (report.keys.sides.from == report.keys.sides.to || settings_.numbers.contains(kLayerNorm1p))
      return;
    const bool to_megatron = report.keys.sides.to == KeyNames::kMegatron;
    const auto shipped = shipped_map_of_text(config_.hf);
    if (shipped && !(to_megatron && names_type_of(*shipped)))
      require_norms_like(map_, *numbers_, *shipped);
    report.norms = norms_of(map_, *numbers_, report.keys);
  }

  /// Notes what config.json must say for a result with Hugging Face's keys.
  void note_config(MapReport& report) const {
    if (report.keys.sides.to != KeyNames::kHf) return;
    MapNumbers numbers = *numbers_;
    for (const auto& [name, value] : report.keys.sides.flags) numbers.guess(name, value);
    report.config = numbers.config_entries();
  }

  bool names_type_of(const KeyMap& other) const {
    return std::ranges::any_of(map_.model_types, [&](const std::string& type) {
      return std::ranges::find(other.model_types, type) != other.model_types.end();
    });
  }

  /// Returns the dtype of dequantized weights.
  DType values() const {
    return settings_.values.value_or(settings_.target.dtype.value_or(DType::kBFloat16));
  }

  MappedKeys undone(const MapNumbers& numbers, const Metadata& mapped,
                    const MappedKeys& keys) const {
    const MapTarget source{.from = keys.sides.to,
                           .names = keys.sides.from,
                           .layout = keys.sides.from_layout,
                           .local_names = false,
                           .keys_of_map = true,
                           .way_back = keys.spelling};
    try {
      return apply_key_map(map_, numbers, mapped, source);
    } catch (const CheckpointError& error) {
      throw CheckpointError(error.code(), "on the way back, " + error.message(), error.context());
    }
  }

  static std::set<std::string> keys_of(const Metadata& metadata) {
    std::set<std::string> keys;
    for (const TensorStorageMetadata& tensor : metadata.tensors) keys.insert(tensor.key);
    return keys;
  }

  std::unique_ptr<CheckpointReader> reader(std::unique_ptr<CheckpointReader> source,
                                           MapReport& report) const {
    MappedKeys& keys = report.keys;
    const Metadata& metadata = source->metadata();
    report.map = map_.family;
    report.trainer = map_.left;
    report.tensors = keys.tensors.size();
    report.dropped = keys.left.dropped;
    RearrangedContents contents{
        .tensors = std::exchange(keys.tensors, {}),
        .conventions = Conventions{.model_folder = source->info().conventions.model_folder}};
    const bool stays =
        keys.sides.from == KeyNames::kMegatron && keys.sides.to == KeyNames::kMegatron;
    std::map<std::string, std::vector<std::string>> dropped;
    std::map<std::string, std::size_t> extra_states;
    for (std::size_t i = 0; i < metadata.objects.size(); ++i) {
      const std::string& key = metadata.objects[i].key;
      const auto of_map = keys.sides.prefix.key(key);
      if (stays && of_map && is_extra_state(key))
        extra_states.emplace(*of_map, i);
      else if (stays && !is_extra_state(key))
        contents.objects.push_back({key, i});
      else
        dropped[kind_of_object(key)].push_back(key);
    }
    for (ExtraState& wanted : keys.extra_states) {
      if (!stays && settings_.extra_states == ExtraStates::kNone) {
        contents.objects.push_back({std::move(wanted.key), 0, Value()});
      } else if (const auto found = extra_states.find(wanted.source); found != extra_states.end()) {
        contents.objects.push_back({std::move(wanted.key), found->second});
        extra_states.erase(found);
      }
    }
    for (const auto& [key, position] : extra_states) dropped[kind_of_object(key)].push_back(key);
    for (auto& [kind, keys_of_kind] : dropped)
      report.dropped.push_back(
          {kind, std::move(keys_of_kind),
           stays ? "the map has no such module" : "Hugging Face files have no objects"});
    set_common(*source, keys, contents);
    report.findings = map_findings(map_, report, *numbers_, metadata,
                                   {.values = values(), .asked = settings_.target.dtype});
    if (settings_.target.local_names.value_or(false) &&
        std::ranges::all_of(map_.tensors, [](const MapRow& row) { return row.local.empty(); }))
      report.findings.push_back(
          {FindingCode::kNoEffect,
           str_format("the setting names=local changes nothing: no row of the map {} has a name "
                      "for local modules ('local')",
                      quote(map_.family))});
    return rearranged_reader(converted(std::move(source), keys.conversions), std::move(contents));
  }

  void set_common(const CheckpointReader& source, const MappedKeys& keys,
                  RearrangedContents& contents) const {
    if (keys.sides.to == KeyNames::kHf) {
      contents.common = Value();
    } else if (keys.sides.from == KeyNames::kHf && !map_.is_megatrons()) {
      contents.common = Value();
    } else if (keys.sides.from == KeyNames::kHf) {
      contents.common = megatron_common(*numbers_, keys);
    } else if (keys.sides.from_layout != keys.sides.to_layout && map_.is_megatrons()) {
      Value common = source.common_state();
      if (common.is_none()) common = Value::dict();
      Value content_metadata = Value::dict();
      if (const Value* const found = common.find(kContentMetadataKey);
          found != nullptr && found->is_dict())
        content_metadata = *found;
      set_layout(content_metadata, keys.sides.to_layout);
      common[kContentMetadataKey] = std::move(content_metadata);
      contents.common = std::move(common);
    }
  }

  MapSettings settings_;
  ModelConfig config_;
  KeyMap map_;
  std::optional<MapNumbers> numbers_;
};

}  // namespace

/// Returns the values that a map's casts leave, in their original dtypes. Throws CheckpointError
/// (unsupported) for sums that do not come back.
static std::unique_ptr<CheckpointReader> rounded(
    std::unique_ptr<CheckpointReader> source,
    const std::map<std::uint32_t, ElementConversion>& conversions) {
  std::map<std::uint32_t, ElementConversion> there, back;
  for (const auto& [position, conversion] : conversions) {
    const TensorStorageMetadata& tensor = source->metadata().tensors[position];
    const DType from = tensor.properties.dtype;
    if (conversion.add != 0 && conversion.rounded)
      throw_error(
          ErrorCode::kUnsupported, {.key = tensor.key},
          "the map adds a constant to this tensor with 'rounded: true', so that it does not come "
          "back as it was, and a round trip shows nothing");
    if (conversion.add != 0 || comes_back(from, conversion.dtype)) continue;
    there.emplace(position, ElementConversion{.dtype = conversion.dtype});
    back.emplace(position, ElementConversion{.dtype = from});
  }
  return converted(converted(std::move(source), std::move(there)), std::move(back));
}

std::unique_ptr<CheckpointReader> mapped_reader(std::unique_ptr<CheckpointReader> source,
                                                const KeyMapOptions& options, MapReport* report,
                                                MapContext context) {
  const Mapping mapping(*source, options, std::move(context));
  MapReport own;
  MapReport& told = report != nullptr ? *report : own;
  return mapping.quantized(mapping.apply(std::move(source), told), told);
}

std::optional<DType> wanted_dtype(const KeyMapOptions& options) {
  return parse_settings(options.set).target.dtype;
}

bool wants_fp8(const KeyMapOptions& options) {
  return parse_settings(options.set).fp8;
}

std::optional<MapRule> rule_for(std::unique_ptr<CheckpointReader> source,
                                const KeyMapOptions& options, const std::string& key) {
  const Mapping mapping(*source, options);
  return mapping.rule_for(std::move(source), key);
}

std::vector<std::string> fitting_maps(const CheckpointReader& source, const Storage* model_files) {
  std::map<std::pair<std::ptrdiff_t, std::ptrdiff_t>, std::vector<std::string>> names;
  const auto wanted = shipped_map(model_config(source, model_files).hf);
  for (const ShippedPolicy& shipped : shipped_maps()) {
    const KeyMap map = KeyMap::from_text(shipped.yaml, std::string(shipped.name) + ".yaml");
    if (map.architectures.empty()) continue;  // its other names are made up
    try {
      const MapContext context{.model_files = model_files, .map = &map, .to = KeyNames::kHf};
      const auto closeness = Mapping(source, {}, context).closeness(source.metadata());
      if (wanted && wanted->family == map.family) return {std::string(shipped.name)};
      names[closeness].emplace_back(shipped.name);
    } catch (const CheckpointError&) {
      continue;  // the map is of another model
    }
  }
  return names.empty() ? std::vector<std::string>() : names.rbegin()->second;
}

RoundTrip round_trip(const std::function<std::unique_ptr<CheckpointReader>()>& open,
                     const KeyMapOptions& options, MapContext context) {
  auto source = open();
  const Mapping mapping(*source, options, std::move(context));
  MapReport report;
  auto mapped = mapping.apply(std::move(source), report);
  source = rounded(mapping.dequantized(open()), report.keys.conversions);
  RearrangedContents kept;
  for (const auto& [position, rows] : report.keys.left.kept)
    kept.tensors.push_back(without_padding(source->metadata(), position, rows));
  kept.common = Value();
  return {rearranged_reader(std::move(source), std::move(kept)),
          mapping.undo(std::move(mapped), report)};
}

}  // namespace dckpt
