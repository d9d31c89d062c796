#include "configs/maps/row_remarks.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "configs/maps/key_map_rows.h"
#include "configs/maps/key_pattern.h"
#include "configs/maps/known_keys.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

Findings remarks_on_keys(const KeyMap& map, const MapRow& row) {
  Findings findings;
  if (row.of_trainer) return findings;
  std::vector<std::string> keys = row.megatron_keys();
  if (!row.local.empty()) keys.push_back(row.local);
  for (const std::string& key : keys) {
    if (map.towers.have(key)) continue;
    const auto unknown = find_unknown(key);
    if (!unknown) continue;
    findings.push_back(
        {FindingCode::kKeysUnknown,
         str_format(
             "no module of Megatron-Core that is known has {}{}; the table of docs/maps.md "
             "lists the known ones, and only a model with a module of your own loads others",
             quote(key),
             unknown->nearest ? str_format(" (did you mean {}?)", quote(*unknown->nearest)) : ""),
         {key}});
  }
  return findings;
}

/// Returns whether the order of the heads of query, key and value is known: a step states it, or
/// Hugging Face's name is Megatron's own.
bool is_order_known(const MapRow& row) {
  return row.hf.keys.front().ends_with(row.megatron) ||
         std::ranges::any_of(row.hf.transform,
                             [](const MapTransform& step) { return is_of_heads(step.step); });
}

/// Returns a key without the prefixes that files put in front of keys, and without its numbers.
std::string bare(const KeyMap& map, std::string_view key) {
  const std::array<std::string_view, 4> prefixes{"module.", "model.", "language_model.",
                                                 map.hf_prefix};
  for (bool cut = true; cut;) {
    const std::size_t before = key.size();
    for (const std::string_view prefix : prefixes) {
      if (key.starts_with(prefix)) key.remove_prefix(prefix.size());
    }
    cut = key.size() < before;
  }
  return KeyPattern(key).skeleton();
}

/// The keys of a map's side: those of its files, and of rows that every model has.
struct SideKeys {
  std::set<std::string> all{};
  std::set<std::string> required{};
};

/// Returns a warning if the keys of a checkpoint do not tell of which side of the map they are.
std::optional<MapRemark> remark_on_sides(const KeyMap& map) {
  SideKeys megatron, hf;
  const auto add = [&](SideKeys& side, const std::vector<std::string>& keys, bool is_required) {
    for (const std::string& key : keys) {
      side.all.insert(bare(map, key));
      if (is_required) side.required.insert(bare(map, key));
    }
  };
  std::optional<MapRemark> remark;
  for (const MapRow& row : map.tensors) {
    add(megatron, row.megatron_keys(), !row.optional);
    add(megatron, row.aliases, false);
    if (!row.local.empty()) add(megatron, {row.local}, false);
    add(hf, row.hf.keys, !row.optional);
    for (const HfTensors& other : row.or_hf) add(hf, other.keys, false);
    if (!row.changes_tensors()) continue;
    if (!remark) remark = {row.written, {FindingCode::kOrderAssumed}};
    remark->finding.keys.push_back(row.megatron);
  }
  if (!remark || (!std::ranges::includes(hf.all, megatron.required) &&
                  !std::ranges::includes(megatron.all, hf.required)))
    return std::nullopt;
  remark->finding.message = str_format(
      "both sides of this map have the same keys, and {} of them: a conversion takes the side of "
      "its source from {}, and is refused if these do not tell; then the setting from=hf or "
      "from={} does",
      remark->finding.keys.size() == 1
          ? str_format("{} has other tensors on each", quote(remark->finding.keys.front()))
          : str_format("{} and others have other tensors on each",
                       quote(remark->finding.keys.front())),
      map.is_megatrons() ? "the format and the args or from --to" : "the format and --to",
      name_of_left(map));
  return remark;
}

}  // namespace

Findings row_remarks(const KeyMap& map, const MapRow& row) {
  Findings findings = remarks_on_keys(map, row);
  if (row.is_qkv() && !map.towers.have(row.megatron) && !is_order_known(row))
    findings.push_back(
        {FindingCode::kOrderAssumed,
         str_format("{} takes query, key and value from one tensor as they are; that is right if "
                    "their heads follow each other by query groups, as in GPT-NeoX, which the step "
                    "qkv_grouped states; if all heads of the query come first, the row needs "
                    "split_rows and qkv_interleave",
                    quote(row.megatron)),
         {row.megatron}});
  return findings;
}

std::vector<MapRemark> map_remarks(const KeyMap& map) {
  std::vector<MapRemark> remarks;
  for (const MapRow& row : map.tensors) {
    for (Finding& finding : row_remarks(map, row))
      remarks.push_back({row.written, std::move(finding)});
  }
  if (auto remark = remark_on_sides(map)) remarks.push_back(*std::move(remark));
  return remarks;
}

}  // namespace dckpt
