#include "operations/convert/model/model_config.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "migration/maps/findings/config_agreement.h"
#include "migration/maps/mapped_reader.h"
#include "operations/convert/conversion_request.h"
#include "strategies/formats/json/json.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/memory.h"
#include "strategies/views/quantized_reader.h"
#include "strategies/views/quantized_weights.h"

namespace dckpt {
namespace {

constexpr const char* kQuantizationConfig = "quantization_config";
constexpr const char* kExpertType = "expert_dtype";  // of its weights, in DeepSeek V4

/// An entry of quantization_config, and its value for weights that maps dequantize.
constexpr std::array<std::pair<const char*, const char*>, 7> kDequantized{{
    {"quant_method", "fp8"},
    {"quant_method", "fbgemm_fp8"},
    {"format", "float-quantized"},
    {"quant_algo", "FP8"},
    {"quant_method", "mxfp4"},
    {"format", "pack-quantized"},
    {"quant_algo", "NVFP4"},
}};

/// Names of the weights' dtype in config.json, in transformers 5 and 4.
constexpr std::array<const char*, 2> kConfigDtypes{"dtype", "torch_dtype"};

/// Shows a folder with another config.json.
class WithConfig final : public ForwardingStorage {
 public:
  WithConfig(std::shared_ptr<Storage> folder, const std::string& config)
      : ForwardingStorage(std::move(folder)) {
    const auto file = made_->create(kModelConfig);
    file->append(as_bytes(config));
    file->close();
  }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    return (name == kModelConfig ? *made_ : *storage_).open(name);
  }

 private:
  std::shared_ptr<Storage> made_ = memory_storage();
};

/// Removes the quantization that maps undo. Returns whether there was one.
bool drop_quantization(Value& config) {
  const Value* const quantization = config.find(kQuantizationConfig);
  if (quantization == nullptr || std::ranges::none_of(kDequantized, [&](const auto& entry) {
        const Value* const value = quantization->find(entry.first);
        return value != nullptr && value->is_str() && value->as_str() == entry.second;
      }))
    return false;
  config.mutable_dict().erase(kQuantizationConfig);
  config.mutable_dict().erase(kExpertType);
  return true;
}

/// Describes float8 weights as DeepSeek V3's config.json does, and names the modules with other
/// matrices, which transformers must not expect to be float8.
void set_quantization(const Metadata& weights, Value& config) {
  constexpr std::string_view kWeight = ".weight";
  ValueList others;
  for (const TensorStorageMetadata& tensor : weights.tensors) {
    if (tensor.key.ends_with(kWeight) && tensor.size.size() == 2 &&
        item_size(tensor.properties.dtype) > 1)
      others.emplace_back(tensor.key.substr(0, tensor.key.size() - kWeight.size()));
  }
  config[kQuantizationConfig] =
      Value::dict({{"quant_method", "fp8"},
                   {"fmt", "e4m3"},
                   {"activation_scheme", "dynamic"},
                   {"weight_block_size", Value::list({kFp8Block, kFp8Block})},
                   {"modules_to_not_convert", Value::list(std::move(others))}});
}

/// Sets the dtype of the weights in `config` and in the configuration of its text model, if they
/// name one. Returns whether it was another.
bool set_dtype(Value& config, const std::string& dtype) {
  bool changed = false;
  for (const char* const name : kConfigDtypes) {
    const Value* const said = config.find(name);
    if (said == nullptr || !said->is_str() || said->as_str() == dtype) continue;
    config[name] = dtype;
    changed = true;
  }
  const Value* const text = config.find(kHfTextConfig);
  if (text == nullptr || !text->is_dict()) return changed;
  Value of_text = *text;
  if (!set_dtype(of_text, dtype)) return changed;
  config[kHfTextConfig] = std::move(of_text);
  return true;
}

/// Returns the largest number that a table of tokens or a list of them gives.
std::int64_t largest_id(const Value* tokens) {
  std::int64_t largest = -1;
  if (tokens == nullptr) return largest;
  const auto see = [&](const Value* id) {
    if (id != nullptr && id->is_int()) largest = std::max(largest, id->as_int());
  };
  if (tokens->is_dict()) {
    for (const auto& [token, id] : tokens->as_dict()) see(&id);
  } else if (tokens->is_list()) {
    largest = static_cast<std::int64_t>(tokens->size()) - 1;
  }
  return largest;
}

/// Returns the largest number of a token in the files of a tokenizer; −1 if there is none, or none
/// that can be read.
std::int64_t largest_token(const ModelFolder& folder) {
  std::int64_t largest = -1;
  for (const char* const name : {"tokenizer.json", "vocab.json", "added_tokens.json"}) {
    if (std::ranges::find(folder.files, name) == folder.files.end()) continue;
    try {
      const auto file = folder.storage->open(name);
      const Value tokens = parse_json(read_file(*file, kMaxModelFile), file->name());
      const Value* const model = tokens.find("model");
      if (model == nullptr || !model->is_dict()) {
        largest = std::max(largest, largest_id(&tokens));
        continue;
      }
      largest = std::max(largest, largest_id(model->find("vocab")));
      const Value* const added = tokens.find("added_tokens");
      if (added == nullptr || !added->is_list()) continue;
      for (const Value& token : added->items()) {
        const Value* const id = token.find("id");
        if (id != nullptr && id->is_int()) largest = std::max(largest, id->as_int());
      }
    } catch (const CheckpointError&) {
      continue;  // a form of its own, which is copied as it is
    }
  }
  return largest;
}

/// Warns if a tokenizer that goes along makes tokens for which the model has no row.
void compare_tokens(const Value& config, ModelFolder& folder) {
  const Value* const text = config.find(kHfTextConfig);
  const Value* rows = text == nullptr ? nullptr : text->find("vocab_size");
  if (rows == nullptr) rows = config.find("vocab_size");
  if (rows == nullptr || !rows->is_int()) return;
  const std::int64_t largest = largest_token(folder);
  if (largest < rows->as_int()) return;
  folder.findings.push_back(
      {.code = FindingCode::kVocabularyPadded,
       .message =
           str_format("the tokenizer that goes along has a token with the number {}, and the "
                      "vocabulary only {} rows (vocab_size of config.json); if the source has "
                      "more, give their number with --set vocab_size=NUMBER",
                      largest, rows->as_int()),
       .severity = Severity::kWarning});
}

/// Returns the map of a conversion, if it is not chosen by config.json.
std::optional<KeyMap> own_map(const KeyMapOptions& map) {
  if (!has_map(map) || map.name == kAutoMap) return std::nullopt;
  return KeyMap::find(map.name);
}

/// Returns whether a config.json of the `folder` may differ from what is written: on request, where
/// parts of the model are to be lost or come later, and if that of the source, `original`, does not
/// describe the source either.
bool may_differ(const Value& original, const CheckpointReader& source, const ModelFolder& folder,
                const ConversionRequest& request) {
  if (request.checks.allow_other_config || request.source.allow_partial) return true;
  if (std::ranges::any_of(request.source.map.set, [](const std::string& setting) {
        return setting.starts_with("prefix=");  // the result is to be joined with the whole model
      }))
    return true;
  return request.source.join.empty() &&
         folder.storage->absolute("") == source.storage().absolute("") &&
         !compare_with_config(original, source.metadata(), own_map(request.source.map)).empty();
}

/// Reports where `config` differs from the tensors `written`, as errors unless it may.
void compare_tensors(const Value& config, const Value& original, const CheckpointReader& source,
                     const Metadata& written, const ConversionRequest& request,
                     ModelFolder& folder) {
  Findings found = compare_with_config(config, written, own_map(request.source.map));
  if (!found.empty() && !may_differ(original, source, folder, request)) {
    for (Finding& finding : found) finding.severity = Severity::kError;
  }
  append(folder.findings, std::move(found));
}

}  // namespace

bool keeps_quantization(const CheckpointReader& source, const KeyMapOptions& map) {
  const Metadata& metadata = source.metadata();
  const auto has_one_byte = [](const TensorStorageMetadata& tensor) {
    return item_size(tensor.properties.dtype) == 1;
  };
  return !wants_fp8(map) && (four_bit_form(metadata) != nullptr ||
                             std::ranges::any_of(metadata.tensors, has_one_byte));
}

void adapt_config(const CheckpointReader& source, const Metadata& written,
                  const std::vector<ConfigEntry>& entries, const ConversionRequest& request,
                  ModelFolder& folder) {
  const KeyMapOptions& map = request.source.map;
  const bool fp8 = wants_fp8(map);
  const auto dtype = wanted_dtype(map);
  const auto file = folder.storage->open(kModelConfig);
  const Bytes text = read_file(*file, kMaxModelFile);
  const bool drops = !fp8 && !keeps_quantization(source, map) &&
                     as_text(text).find(kQuantizationConfig) != std::string_view::npos;
  std::optional<Value> parsed;
  try {
    parsed = parse_json(text, file->name());
  } catch (const CheckpointError&) {
    if (fp8 || dtype || drops || !entries.empty()) throw;
  }
  if (!parsed || !parsed->is_dict()) return;
  Value& config = *parsed;
  const Value original = config;
  std::vector<std::string> changes;
  if (drops && drop_quantization(config))
    changes.push_back(
        str_format("without its {}: the weights are not quantized", quote(kQuantizationConfig)));
  if (dtype && set_dtype(config, std::string(to_string(*dtype))))
    changes.push_back(str_format("with the type {} of the weights", to_string(*dtype)));
  if (fp8) {
    set_quantization(source.metadata(), config);
    changes.push_back(str_format("with a {} for float8 weights", quote(kQuantizationConfig)));
  }
  for (const ConfigEntry& entry : entries) {
    set_entry(config, entry);
    changes.push_back(str_format("with {} {}, as it was set or as the tensors show", entry.path,
                                 to_json(entry.value)));
  }
  if (!changes.empty())  // nothing else writes into the source folder
    folder.storage = std::make_shared<WithConfig>(std::const_pointer_cast<Storage>(folder.storage),
                                                  to_json(config, 2) + "\n");
  for (const std::string& change : changes)
    folder.findings.push_back({FindingCode::kModelFilesCopied, "config.json goes along " + change});
  compare_tensors(config, original, source, written, request, folder);
  if (request.mapped) compare_tokens(config, folder);
}

}  // namespace dckpt
