#include "tools/dckpt/commands/inspect_sizes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/commands/layers.h"
#include "tools/dckpt/pictures/bars.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {

void add_bars(const CheckpointSummary& summary, Table& groups) {
  constexpr std::size_t kLongest = 24;
  constexpr std::size_t kShortest = 6;
  std::vector<std::uint64_t> bytes;
  std::uint64_t all = 0;
  for (const GroupTotal& total : summary.groups) {
    if (total.empty()) continue;
    bytes.push_back(total.bytes);
    all += total.bytes;
  }
  const PictureStyle style = picture_style();
  const std::size_t taken = groups.columns() + 2;
  if (bytes.size() < 2 || all == 0 || taken + kShortest > style.columns) return;
  const std::size_t longest = std::min(style.columns - taken, kLongest);
  std::vector<std::string> drawn;
  for (const std::uint64_t size : bytes) {
    const double share = static_cast<double>(size) / static_cast<double>(all);
    const std::string text = bar(share, longest, style);
    drawn.push_back(text.empty() ? text : tinted(text, 0, style));
  }
  groups.add_column({""}, drawn);
}

Picture layer_bars(const CheckpointSummary& summary, const PictureStyle& style) {
  const LayerSizes sizes = layer_sizes(summary);
  std::vector<Bar> rows;
  std::size_t layers = 0;
  if (sizes.stacks.size() > kMostStacks) return {};
  for (const auto& [stack, of_stack] : sizes.stacks) {
    const auto by_number = sizes.by_number(of_stack);
    layers += by_number.size();
    for (auto layer = by_number.begin(); layer != by_number.end();) {
      auto last = layer;
      for (auto next = std::next(layer); next != by_number.end() && next->second == layer->second &&
                                         next->first == last->first + 1;
           ++next)
        last = next;
      const bool several = last != layer;
      std::string name = str_format("{} {}", shown(stack), layer->first);
      if (several) name += str_format("{}{}", style.unicode ? "…" : "-", last->first);
      rows.push_back({std::move(name), static_cast<double>(layer->second),
                      human_bytes(layer->second) + (several ? " each" : "")});
      layer = std::next(last);
    }
  }
  if (layers < 2) return {};
  if (sizes.outside > 0)
    rows.push_back({"outside", static_cast<double>(sizes.outside), human_bytes(sizes.outside)});
  return bars(rows, style);
}

void print_layers(const CheckpointSummary& summary) {
  const Picture picture = layer_bars(summary, picture_style());
  if (picture.empty()) return;
  print("\n" + styled(Style::kDim, "  TENSORS BY LAYER") + "\n");
  print(picture);
}

}  // namespace dckpt::tool
