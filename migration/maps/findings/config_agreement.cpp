#include "migration/maps/findings/config_agreement.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "migration/maps/arrangement/apply_key_map.h"
#include "migration/maps/numbers/map_numbers.h"
#include "migration/maps/numbers/shipped_map.h"
#include "strategies/views/quantized_weights.h"

namespace dckpt {
namespace {

constexpr std::size_t kMostShown = 10;
constexpr const char* kArchitectures = "architectures";
/// Ends of the names of classes that have a language model's head.
constexpr std::string_view kWithHead[] = {"ForCausalLM", "ForConditionalGeneration", "LMHeadModel"};
/// The list in which transformers names the attention of each layer.
constexpr const char* kLayerTypes = "layer_types";

/// Returns whether a map of one's own is for the model of config.json, or for its language model.
bool is_map_of_text(const KeyMap& map, const Value& config) {
  const Value* const text = config.find(kHfTextConfig);
  return is_map_of(map, config) || (text != nullptr && is_map_of(map, *text));
}

/// Returns whether config.json names a class without a head, such as LlamaModel.
bool lacks_head(const Value& config) {
  const Value* const classes = config.find(kArchitectures);
  const auto has_head = [](const Value& name) {
    return name.is_str() && std::ranges::any_of(kWithHead, [&](std::string_view end) {
             return name.as_str().ends_with(end);
           });
  };
  return classes != nullptr && classes->is_list() && classes->size() > 0 &&
         std::ranges::none_of(classes->items(), has_head);
}

/// Returns the parts beside the language model that config.json describes: "vision_config".
std::vector<std::string> other_parts(const Value& config) {
  std::vector<std::string> parts;
  for (const char* const part : {"vision_config", "audio_config"}) {
    const Value* const section = config.find(part);
    if (section != nullptr && section->is_dict()) parts.emplace_back(part);
  }
  return parts;
}

/// Returns whether all keys are those of a language model by its names in transformers.
bool is_text_alone(const Metadata& written) {
  return std::ranges::all_of(written.tensors, [](const TensorStorageMetadata& tensor) {
    std::string_view key = tensor.key;
    for (const std::string_view prefix : {"model.", "language_model.", "model."}) {
      if (key.starts_with(prefix)) key.remove_prefix(prefix.size());
    }
    return key.starts_with("layers.") || key.starts_with("embed_tokens.") ||
           key.starts_with("norm.") || key.starts_with("lm_head.");
  });
}

/// Returns whether some weights are packed into integers, whose shapes are not those of the model.
bool is_packed(const Metadata& written) {
  return four_bit_form(written) != nullptr ||
         std::ranges::any_of(written.tensors, [](const TensorStorageMetadata& tensor) {
           return tensor.global_shape().size() > 1 && tensor.properties.dtype >= DType::kUInt8 &&
                  tensor.properties.dtype <= DType::kInt64;
         });
}

/// Adds a sentence if config.json describes an image tower, and the tensors are those of a text
/// model. Returns whether it does.
bool add_missing_parts(const Value& config, const Metadata& written,
                       std::vector<std::string>& sentences) {
  const std::vector<std::string> parts = other_parts(config);
  if (parts.empty() || !is_text_alone(written)) return false;
  sentences.push_back(
      str_format("the tensors are those of a language model alone, and it describes {} as well: "
                 "transformers makes the rest up and may not find these keys either; give the "
                 "config.json of a text model with --model-files, or join the result with the "
                 "whole model, in whose keys --set prefix=model.language_model. writes the text",
                 quoted_list(parts)));
  return true;
}

void add_layer_types(const Value& config, std::vector<std::string>& sentences) {
  const Value* const text = config.find(kHfTextConfig);
  const Value& of = text != nullptr && text->is_dict() ? *text : config;
  const Value* const types = of.find(kLayerTypes);
  const Value* const layers = of.find("num_hidden_layers");
  if (types == nullptr || !types->is_list() || layers == nullptr || !layers->is_int()) return;
  if (static_cast<std::int64_t>(types->size()) == layers->as_int()) return;
  sentences.push_back(str_format("num_hidden_layers is {}, and {} lists {}", layers->as_int(),
                                 kLayerTypes, types->size()));
}

std::vector<std::string> differences(const KeyMap& map, const Value& config,
                                     const Metadata& written) {
  std::vector<std::string> sentences;
  // A map of the same names on both sides does not tell; config.json describes Hugging Face's.
  MapTarget target{.presumed = KeyNames::kHf,
                   .names = KeyNames::kMegatron,
                   .layout = MegatronLayout::kNonHomogeneous};
  target.text_only = add_missing_parts(config, written, sentences);
  try {
    MapNumbers numbers(map, {.args = {}, .run_config = {}, .hf = config}, {});
    const auto vocabulary = numbers.find("vocab_size");
    if (vocabulary) numbers.set("padded_vocab_size", *vocabulary);
    for (std::string& misfit : misfits(map, numbers, written, target))
      sentences.push_back(std::move(misfit));
  } catch (const CheckpointError& error) {
    if (error.code() == ErrorCode::kUnsupported) return sentences;  // nothing can be compared
    if (error.code() != ErrorCode::kMismatch) throw;
    sentences.push_back(error.message());
  }
  add_layer_types(config, sentences);
  return sentences;
}

/// Takes away the rows that make a head.
KeyMap without_head(KeyMap map) {
  std::erase_if(map.tensors,
                [](const MapRow& row) { return row.megatron.starts_with("output_layer."); });
  return map;
}

}  // namespace

Findings compare_with_config(const Value& config, const Metadata& written,
                             const std::optional<KeyMap>& own) {
  if (!config.is_dict() || is_packed(written)) return {};
  std::optional<KeyMap> map =
      own && is_map_of_text(*own, config) ? own : shipped_map_of_text(config);
  if (!map) return {};
  if (lacks_head(config)) map = without_head(*std::move(map));
  Findings findings;
  const std::vector<std::string> all = differences(*map, config, written);
  for (std::size_t i = 0; i < std::min(all.size(), kMostShown); ++i)
    findings.push_back(
        {FindingCode::kConfigDiffers,
         str_format("config.json, which goes along, differs from the tensors: {}", all[i])});
  if (all.size() > kMostShown)
    findings.push_back({FindingCode::kConfigDiffers,
                        str_format("config.json differs from the tensors in {} more ways",
                                   all.size() - kMostShown)});
  return findings;
}

}  // namespace dckpt
