#include "tools/dckpt/diff_layers.h"

#include <algorithm>
#include <map>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/layers.h"
#include "tools/dckpt/pictures/heat_line.h"
#include "tools/dckpt/terminal.h"
#include "tools/dckpt/text_layout.h"

namespace dckpt::tool {
namespace {

double share_of(const Difference& difference) {
  if (!difference.elements || difference.elements->elements == 0) return 1;
  return static_cast<double>(difference.elements->count) /
         static_cast<double>(difference.elements->elements);
}

}  // namespace

Picture layer_heat(std::span<const std::string> keys, const DiffReport& report,
                   const PictureStyle& style) {
  std::map<std::string, std::map<std::uint64_t, double>> stacks;
  const auto cell_of = [&](const std::string& key) -> double* {
    const std::optional<LayerName> layer = layer_of(key);
    if (!layer) return nullptr;
    return &stacks[layer->stack][layer->number];
  };
  for (const std::string& key : keys) cell_of(key);
  bool any = false;
  for (const Difference& difference : report.differences) {
    if (difference.kind == Difference::Kind::kObject ||
        difference.kind == Difference::Kind::kCommon)
      continue;
    if (double* const cell = cell_of(difference.key)) {
      *cell = std::max(*cell, share_of(difference));
      any = true;
    }
  }
  if (!any || stacks.size() > kMostStacks) return {};
  Picture lines;
  for (const auto& [stack, by_number] : stacks) {
    std::vector<double> shares(by_number.rbegin()->first + 1);
    for (const auto& [layer, share] : by_number) shares[layer] = share;
    for (std::string& line : heat_line(shown(stack), shares, style))
      lines.push_back(std::move(line));
  }
  if (lines.empty()) return {};
  const std::string legend = str_format(
      "  A cell for each layer: the share of the elements that differ, in the tensor that differs "
      "most. {}",
      heat_legend(style));
  for (std::string& line : split(wrapped(legend, style.columns), '\n'))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace dckpt::tool
