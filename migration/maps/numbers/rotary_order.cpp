#include "migration/maps/numbers/rotary_order.h"

#include <algorithm>
#include <array>

#include "configs/maps/key_map_rows.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr const char* kRotaryInterleaved = "rotary_interleaved";
constexpr const char* kAttention = "*.self_attention.*";

/// Model types whose code in transformers rotates x[..., 0::2] together with x[..., 1::2].
constexpr std::array<std::string_view, 20> kTypes{
    "blt",         "chatglm",  "codegen",      "cohere",          "cohere2",
    "cohere2_moe", "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe", "glm",
    "glm4",        "glm4v",    "glm4v_text",   "glm_ocr",         "glm_ocr_text",
    "gptj",        "helium",   "llama4",       "llama4_text",     "ernie4_5_vl_moe_text"};

bool is_type(const std::string& name) {
  return std::ranges::find(kTypes, name) != kTypes.end();
}

std::string model_type(const Value* config) {
  const Value* const type = config == nullptr ? nullptr : config->find("model_type");
  return type != nullptr && type->is_str() ? type->as_str() : std::string();
}

bool turns_back(const MapRow& row) {
  return glob_match(kAttention, row.megatron) &&
         has_step(row.hf.transform, MapStep::kRopeDeinterleave);
}

bool has_heads(const MapRow& row) {
  return row.is_qkv() || std::ranges::any_of(row.hf.transform, [](const MapTransform& step) {
           return is_of_heads(step.step);
         });
}

bool turns(const MapTransform& step) {
  return step.step == MapStep::kRopeInterleave || step.step == MapStep::kRopeDeinterleave;
}

/// Refuses a row that leaves the order of query and key, and is not meant for this order alone.
void require_turns(const KeyMap& map, const MapNumbers& numbers) {
  const MapNumber* const number = map.find_number(kRotaryInterleaved);
  if (number == nullptr || number->args.empty() || !numbers.is_true(kRotaryInterleaved) ||
      numbers.is_true(kHfRotaryInterleaved))
    return;
  for (const MapRow& row : map.tensors) {
    if (!is_active(row, numbers) || row.only_if == kRotaryInterleaved ||
        map.towers.have(row.megatron) || !has_heads(row) ||
        std::ranges::any_of(row.hf.transform, turns))
      continue;
    throw_error(ErrorCode::kUnsupported,
                "rows of query and key that turn together are neighbors in {} ({}), and "
                "the row {} of the map {} leaves their order; give it the step rope_interleave, "
                "as in the shipped map llama (dckpt config show llama)",
                map.left_name(), numbers.describe(kRotaryInterleaved), quote(row.megatron),
                quote(map.family));
  }
}

/// Returns whether Megatron's weights are known to have halves, from the args or from settings of
/// the conversion. A map whose number does not follow the args says that its rows are right as they
/// are.
bool has_halves(const KeyMap& map, const MapNumbers& numbers) {
  const MapNumber* const number = map.find_number(kRotaryInterleaved);
  return number != nullptr && !number->args.empty() &&
         numbers.find(kRotaryInterleaved).value_or(1) == 0;
}

}  // namespace

std::optional<std::string> type_with_rotary_neighbors(const KeyMap& map, const Value& config) {
  for (const Value* const of : {config.find(kHfTextConfig), &config}) {
    if (const std::string type = model_type(of); is_type(type))
      return str_format("model_type {} of config.json", type);
  }
  const auto type = std::ranges::find_if(map.model_types, is_type);
  if (type == map.model_types.end()) return std::nullopt;
  return str_format("model_type {} of the map", *type);
}

std::vector<MapTransform> steps_without_second_turn(const MapRow& row,
                                                    const std::vector<MapTransform>& steps,
                                                    const MapNumbers& numbers) {
  std::vector<MapTransform> result = steps;
  if (numbers.is_true(kHfRotaryInterleaved) && glob_match(kAttention, row.megatron))
    std::erase_if(result,
                  [](const MapTransform& step) { return step.step == MapStep::kRopeInterleave; });
  return result;
}

void require_rotary_order(const KeyMap& map, const MapNumbers& numbers) {
  require_turns(map, numbers);
  if (!numbers.is_true(kHfRotaryInterleaved) || !has_halves(map, numbers)) return;
  const bool turned = std::ranges::any_of(
      map.tensors, [&](const MapRow& row) { return is_active(row, numbers) && turns_back(row); });
  if (turned) return;
  throw_error(ErrorCode::kUnsupported,
              "the map {} is not for this model: rows of query and key that turn together are "
              "neighbors in its Hugging Face files ({}) and halves in {} ({}), and no row "
              "has the step rope_deinterleave; the shipped map glm4 shows how it is used, see "
              "docs/maps.md",
              quote(map.family), numbers.describe(kHfRotaryInterleaved), map.left_name(),
              numbers.describe(kRotaryInterleaved));
}

}  // namespace dckpt
