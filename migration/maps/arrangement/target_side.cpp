#include "migration/maps/arrangement/target_side.h"

#include <algorithm>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

/// Megatron's hybrid models have a tensor for each layer even if all layers are alike.
constexpr std::string_view kNormOfHybrid = "decoder.final_norm.";

/// Returns why no tensor can have an axis for layers; empty if it can.
std::string mixed_layers(const KeyMap& map, const SourceRows& rows) {
  const bool has_steps = std::ranges::any_of(
      map.tensors, [](const MapRow& row) { return KeyPattern(row.megatron).has_steps(); });
  if (has_steps)
    return str_format("there are several layers of {} for one of Hugging Face", map.left_name());
  const bool is_hybrid = std::ranges::any_of(
      map.tensors, [](const MapRow& row) { return row.megatron.starts_with(kNormOfHybrid); });
  const std::string mixed = rows.kinds.mixed();
  return mixed.empty() && is_hybrid ? str_format("{} is the last norm of a hybrid model",
                                                 quote(std::string(kNormOfHybrid) + "weight"))
                                    : mixed;
}

}  // namespace

TargetSide::TargetSide(const KeyMap& map, const SourceRows& rows, const MapTarget& target,
                       Completeness& completeness)
    : map_(map), rows_(rows), target_(target) {
  const bool was_hf = rows.side.names == KeyNames::kHf;
  const KeyNames names = target.names.value_or(was_hf ? KeyNames::kMegatron : KeyNames::kHf);
  const std::string mixed = mixed_layers(map, rows);
  const MegatronLayout usual = map.layout            ? *map.layout
                               : !map.is_megatrons() ? MegatronLayout::kSingleton
                               : !mixed.empty() || !map.kinds.empty()
                                   ? MegatronLayout::kNonHomogeneous
                                   : MegatronLayout::kHomogeneous;
  const MegatronLayout layout = target.layout.value_or(was_hf ? usual : rows.side.layout);
  if (!mixed.empty() && names == KeyNames::kMegatron && layout == MegatronLayout::kHomogeneous)
    completeness.problems.push_back(
        str_format("{}, which {}'s homogeneous layout cannot hold; choose layout=non-homogeneous "
                   "or layout=singleton",
                   mixed, map.left_name()));
  if (target.fused_experts && names != KeyNames::kHf)
    throw_error(ErrorCode::kInvalidArgument,
                "the setting experts is for results with Hugging Face's keys; where those of {} "
                "have experts is the setting layout",
                map.left_name());
  const auto layers = rows.counts.find(kLayer);
  side_ = side_of(map, names, layout, layers == rows.counts.end() ? 0 : layers->second);
  written_.resize(map.tensors.size());
  for (std::size_t row = 0; target.fused_experts && row < written_.size(); ++row) {
    if (rows.rows[row].form) written_[row] = written_form(row);
  }
}

const SideForm& TargetSide::form(std::size_t row) const {
  const auto form = target_.way_back.forms.find(map_.tensors[row].megatron);
  if (!is_megatron() && form != target_.way_back.forms.end()) return side_.rows[row][form->second];
  return side_.rows[row][written_[row]];
}

/// Rows of the same layers have the naming of the experts' form, as releases of transformers have.
std::size_t TargetSide::written_form(std::size_t row) const {
  const bool has_experts = KeyPattern(map_.tensors[row].megatron).has(kExpert);
  if (!has_experts && map_.tensors[row].layers != kMoeLayers) return 0;
  for (std::size_t other = 0; other < side_.rows.size(); ++other) {
    if ((has_experts && other != row) || !KeyPattern(map_.tensors[other].megatron).has(kExpert))
      continue;
    const std::vector<SideForm>& forms = side_.rows[other];
    const auto found = std::ranges::find_if(forms, [&](const SideForm& one) {
      return one.tensors.front().names.front().has(kExpert) != *target_.fused_experts;
    });
    const auto form = static_cast<std::size_t>(found - forms.begin());
    if (found != forms.end()) return form < side_.rows[row].size() ? form : 0;
    throw_error(ErrorCode::kUnsupported,
                "the map {} knows experts {}, so experts={} is not possible; a map of yours that "
                "extends it can have another form of {} ('or')",
                quote(map_.family),
                *target_.fused_experts ? "one by one alone" : "in one tensor alone",
                *target_.fused_experts ? "fused" : "single", quote(map_.tensors[other].megatron));
  }
  return 0;
}

const KeyPattern& TargetSide::pattern(std::size_t row, std::size_t tensor) const {
  const MapRow& entry = map_.tensors[row];
  const std::vector<KeyPattern>& names = form(row).tensors[tensor].names;
  if (!is_megatron()) return names.front();
  if (rows_.side.names == KeyNames::kMegatron && !target_.local_names)
    return names[rows_.rows[row].name];
  const auto spelled = target_.way_back.spelled.find(entry.megatron);
  for (std::size_t name = 1; name < names.size() && spelled != target_.way_back.spelled.end();
       ++name) {
    if (spelling(entry, name) == spelled->second) return names[name];
  }
  return target_.local_names.value_or(false) && !entry.local.empty() ? names[1] : names.front();
}

KeyPrefix TargetSide::prefix() const {
  if (target_.keys_of_map) return {};
  std::string text = target_.prefix;
  if (text.empty() && !map_.towers.keys.empty() && !target_.text_only)
    text = is_megatron() ? kTextPrefix : map_.towers.hf_text_prefix;
  if (text.empty() || text == kTextPrefix) return text_prefix(map_, text);
  const std::string behind_models = map_.hf_prefix + kTextPrefix;
  if (!is_megatron() && text == behind_models) return text_prefix(map_, text, map_.hf_prefix);
  throw_error(ErrorCode::kInvalidArgument, "keys cannot start with {} here, but with {}{}",
              quote(text), quote(kTextPrefix),
              is_megatron() ? std::string() : " or " + quote(behind_models));
}

const std::string& spelling(const MapRow& row, std::size_t name) {
  if (name == 0) return row.megatron;
  if (!row.local.empty()) {
    if (name == 1) return row.local;
    --name;
  }
  return row.aliases[name - 1];
}

}  // namespace dckpt
