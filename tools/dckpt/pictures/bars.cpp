#include "tools/dckpt/pictures/bars.h"

#include <algorithm>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kLongestBar = 40;
constexpr std::size_t kShortestBar = 4;

/// The widths of the parts of a line.
struct Layout {
  std::size_t name = 0;
  std::size_t bar = 0;
  std::size_t text = 0;
  double longest = 0;  ///< value of the longest bar

  bool fits(const PictureStyle& style) const { return taken() <= style.columns; }
  std::size_t taken() const { return kIndent + name + kBetween + text; }
};

Layout layout(std::span<const std::span<const Bar>> groups, const PictureStyle& style) {
  Layout columns;
  for (const std::span<const Bar> group : groups) {
    for (const Bar& row : group) {
      columns.name = std::max(columns.name, columns_of(row.name));
      columns.text = std::max(columns.text, columns_of(row.text));
      columns.longest = std::max(columns.longest, row.value);
    }
  }
  columns.name = std::min(columns.name, std::max<std::size_t>(style.columns / 3, 6));
  if (columns.taken() + kBetween + kShortestBar <= style.columns)
    columns.bar = std::min(style.columns - columns.taken() - kBetween, kLongestBar);
  return columns;
}

/// Returns the line that replaces the bars between the first and the last.
std::string left_out(std::span<const Bar> rows, const PictureStyle& style) {
  const auto [least, most] = std::ranges::minmax_element(rows, {}, &Bar::value);
  const std::string text = str_format("{} {} more, {} to {}", style.unicode ? "…" : "...",
                                      grouped(rows.size()), least->text, most->text);
  const std::size_t room = style.columns - kIndent;
  return std::string(kIndent, ' ') + shortened(text, room, style.unicode);
}

void draw_rows(std::span<const Bar> rows, const Layout& columns, const PictureStyle& style,
               Picture& lines) {
  for (const Bar& row : rows) {
    std::string line = std::string(kIndent, ' ') +
                       padded(shortened(row.name, columns.name, style.unicode), columns.name) +
                       std::string(kBetween, ' ');
    if (columns.bar > 0) {
      const std::string drawn =
          bar(columns.longest > 0 ? row.value / columns.longest : 0, columns.bar, style);
      line += (drawn.empty() ? "" : tinted(drawn, 0, style)) +
              std::string(columns.bar - columns_of(drawn) + kBetween, ' ');
    }
    lines.push_back(line + padded_left(row.text, columns.text));
  }
}

void draw(std::span<const Bar> all, const Layout& columns, const PictureStyle& style,
          Picture& lines) {
  if (all.size() <= kMostBars) return draw_rows(all, columns, style, lines);
  constexpr std::size_t kFirst = kMostBars / 2;
  constexpr std::size_t kLast = kMostBars - kFirst - 1;
  draw_rows(all.first(kFirst), columns, style, lines);
  lines.push_back(left_out(all.subspan(kFirst, all.size() - kFirst - kLast), style));
  draw_rows(all.last(kLast), columns, style, lines);
}

}  // namespace

Picture bars(std::span<const Bar> all, const PictureStyle& style) {
  const Layout columns = layout({&all, 1}, style);
  Picture lines;
  if (columns.fits(style)) draw(all, columns, style, lines);
  return lines;
}

Picture bars(std::span<const BarGroup> groups, const PictureStyle& style) {
  std::vector<std::span<const Bar>> rows;
  for (const BarGroup& group : groups) rows.emplace_back(group.bars);
  const Layout columns = layout(rows, style);
  if (!columns.fits(style)) return {};
  Picture lines;
  for (const BarGroup& group : groups) {
    lines.push_back(shortened(group.title, style.columns, style.unicode));
    draw(group.bars, columns, style, lines);
  }
  return lines;
}

}  // namespace dckpt::tool
