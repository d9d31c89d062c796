#include "tools/dckpt/commands/diff_layers.h"

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "operations/inspect/layer_differences.h"
#include "tools/dckpt/commands/layers.h"
#include "tools/dckpt/pictures/heat_line.h"
#include "tools/dckpt/render/terminal.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {

Picture layer_heat(std::span<const std::string> keys, const DiffReport& report,
                   const PictureStyle& style) {
  const auto stacks = layer_differences(keys, report);
  if (stacks.size() > kMostStacks) return {};
  Picture lines;
  for (const auto& [stack, shares] : stacks) {
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
