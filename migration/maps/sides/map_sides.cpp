#include "migration/maps/sides/map_sides.h"

#include <algorithm>
#include <utility>

#include "configs/maps/key_map_rows.h"

namespace dckpt {
namespace {

/// Names of a gated tensor's halves in the singleton layout: "weight_w" and "weight_v".
constexpr const char* kGateSuffix = "_w";
constexpr const char* kUpSuffix = "_v";

/// Returns the step that joins the tensors made by the last step of a row with several Megatron
/// keys.
MapTransform joins(const MapRow& row) {
  return {.step = MapStep::kConcatRows, .parts = shares_of(row.hf.transform.back())};
}

SideForm megatron_form(const MapRow& row, MegatronLayout layout) {
  SideTensor tensor;
  tensor.names.push_back(in_layout(KeyPattern(row.megatron), layout));
  if (!row.local.empty()) tensor.names.push_back(in_layout(KeyPattern(row.local), layout));
  for (const std::string& alias : row.aliases)
    tensor.names.push_back(in_layout(KeyPattern(alias), layout));
  if (!row.more.empty()) {
    SideForm form{.tensors = {std::move(tensor)}, .steps = {joins(row)}};
    for (const std::string& key : row.more)
      form.tensors.push_back({{in_layout(KeyPattern(key), layout)}});
    return form;
  }
  if (layout != MegatronLayout::kSingleton || !row.gated) return {{std::move(tensor)}, {}};
  SideForm form{.tensors = {}, .steps = {{.step = MapStep::kConcatRows}}};
  for (const char* const suffix : {kGateSuffix, kUpSuffix}) {
    SideTensor half;
    for (const KeyPattern& name : tensor.names) half.names.push_back(name.with_suffix(suffix));
    form.tensors.push_back(std::move(half));
  }
  return form;
}

SideForm hf_form(const MapRow& row, const HfTensors& hf, std::optional<std::int64_t> layers) {
  SideForm form{.tensors = {}, .steps = hf.transform, .experts_in_rows = hf.has_experts_in_rows()};
  if (!row.more.empty()) form.steps.push_back(joins(row));
  for (const std::string& key : hf.keys) {
    const KeyPattern pattern(key);
    form.tensors.push_back({{layers ? pattern.behind("l", *layers) : pattern}});
  }
  return form;
}

}  // namespace

std::vector<std::string> stacked_numbers(const KeyPattern& row, const KeyPattern& pattern) {
  std::vector<std::string> names = row.numbers();
  std::erase_if(names, [&](const std::string& name) { return pattern.has(name); });
  return names;
}

std::vector<std::string> leading_axes(const KeyPattern& row, const KeyPattern& pattern,
                                      const SideForm& form) {
  std::vector<std::string> names = stacked_numbers(row, pattern);
  if (form.experts_in_rows) std::erase(names, kExpert);
  return names;
}

RowNumbers pick(const KeyPattern& row, std::span<const std::int64_t> instance,
                const std::vector<std::string>& names) {
  RowNumbers result;
  for (const std::string& name : names) {
    const auto at = std::ranges::find(row.numbers(), name) - row.numbers().begin();
    result.push_back(instance[static_cast<std::size_t>(at)]);
  }
  return result;
}

KeyPattern in_layout(const KeyPattern& pattern, MegatronLayout layout) {
  switch (layout) {
    case MegatronLayout::kHomogeneous: return pattern.without("l").without("v").without("e");
    case MegatronLayout::kNonHomogeneous: return pattern.without("e");
    case MegatronLayout::kSingleton: break;
  }
  return pattern;
}

MapSide side_of(const KeyMap& map, KeyNames names, MegatronLayout layout,
                std::optional<std::int64_t> layers) {
  MapSide side{.names = names, .layout = layout, .rows = {}};
  for (const MapRow& row : map.tensors) {
    std::vector<SideForm>& forms = side.rows.emplace_back();
    if (names == KeyNames::kMegatron) {
      forms.push_back(megatron_form(row, layout));
      continue;
    }
    forms.push_back(hf_form(row, row.hf, layers));
    for (const HfTensors& other : row.or_hf) forms.push_back(hf_form(row, other, layers));
  }
  return side;
}

bool has_layers_behind(const KeyMap& map) {
  return std::ranges::any_of(map.tensors, [](const MapRow& row) {
    return std::ranges::any_of(row.hf.keys,
                               [](const std::string& key) { return KeyPattern(key).counts_on(); });
  });
}

SideIndex::SideIndex(const MapSide& side) {
  for (std::size_t row = 0; row < side.rows.size(); ++row) {
    for (std::size_t form = 0; form < side.rows[row].size(); ++form) {
      const std::vector<SideTensor>& tensors = side.rows[row][form].tensors;
      for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
        for (std::size_t name = 0; name < tensors[tensor].names.size(); ++name) {
          const KeyPattern& pattern = tensors[tensor].names[name];
          by_skeleton_[pattern.skeleton()].push_back(
              {{.row = row, .form = form, .tensor = tensor, .name = name}, &pattern});
        }
      }
    }
  }
}

std::vector<KeyUse> SideIndex::find(const std::string& key) const {
  std::vector<KeyUse> uses;
  const auto found = by_skeleton_.find(skeleton_of(key));
  if (found == by_skeleton_.end()) return uses;
  bool counts_on = false;
  for (const Entry& entry : found->second) {
    auto numbers = entry.pattern->match(key);
    if (!numbers || (counts_on && !entry.pattern->counts_on())) continue;
    if (entry.pattern->counts_on() && !std::exchange(counts_on, true)) uses.clear();
    uses.push_back(entry.use);
    uses.back().numbers = *std::move(numbers);
  }
  return uses;
}

}  // namespace dckpt
