#include "tools/dckpt/pictures/bars.h"

#include <algorithm>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/text_layout.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kLongestBar = 40;
constexpr std::size_t kShortestBar = 4;
constexpr std::size_t kIndent = 2;
constexpr std::size_t kBetween = 2;

/// How wide the parts of a line are.
struct Layout {
  std::size_t name = 0;
  std::size_t bar = 0;
  std::size_t text = 0;
};

Layout layout(std::span<const Bar> all, const PictureStyle& style) {
  Layout columns;
  for (const Bar& row : all) {
    columns.name = std::max(columns.name, columns_of(row.name));
    columns.text = std::max(columns.text, columns_of(row.text));
  }
  columns.name = std::min(columns.name, std::max<std::size_t>(style.columns / 3, 6));
  const std::size_t taken = kIndent + columns.name + kBetween + columns.text;
  if (taken + kBetween + kShortestBar <= style.columns)
    columns.bar = std::min(style.columns - taken - kBetween, kLongestBar);
  return columns;
}

/// A line for the ones between first and last.
std::string left_out(std::span<const Bar> rows, const PictureStyle& style) {
  const auto [least, most] = std::ranges::minmax_element(rows, {}, &Bar::value);
  const std::string text = str_format("{} {} more, {} to {}", style.unicode ? "…" : "...",
                                      grouped(rows.size()), least->text, most->text);
  const std::size_t room = style.columns - kIndent;
  return std::string(kIndent, ' ') + shortened(text, room, style.unicode);
}

}  // namespace

Picture bars(std::span<const Bar> all, const PictureStyle& style, double longest) {
  if (all.empty()) return {};
  for (const Bar& row : all) longest = std::max(longest, row.value);
  const Layout columns = layout(all, style);
  if (kIndent + columns.name + kBetween + columns.text > style.columns) return {};
  Picture lines;
  const auto draw = [&](std::span<const Bar> rows) {
    for (const Bar& row : rows) {
      const std::string name =
          padded(shortened(row.name, columns.name, style.unicode), columns.name);
      std::string line = std::string(kIndent, ' ') + name + std::string(kBetween, ' ');
      if (columns.bar > 0) {
        const std::string drawn = bar(longest > 0 ? row.value / longest : 0, columns.bar, style);
        line += (drawn.empty() ? "" : tinted(drawn, 0, style)) +
                std::string(columns.bar - columns_of(drawn) + kBetween, ' ');
      }
      lines.push_back(line + padded_left(row.text, columns.text));
    }
  };
  if (all.size() <= kMostBars) {
    draw(all);
    return lines;
  }
  constexpr std::size_t kFirst = kMostBars / 2;
  constexpr std::size_t kLast = kMostBars - kFirst - 1;
  draw(all.first(kFirst));
  lines.push_back(left_out(all.subspan(kFirst, all.size() - kFirst - kLast), style));
  draw(all.last(kLast));
  return lines;
}

}  // namespace dckpt::tool
