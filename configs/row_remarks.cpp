#include "configs/row_remarks.h"

#include <algorithm>
#include <utility>

#include "configs/key_map_rows.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/megatron/known_keys.h"

namespace dckpt {
namespace {

Findings remarks_on_keys(const KeyMap& map, const MapRow& row) {
  Findings findings;
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
  return remarks;
}

}  // namespace dckpt
