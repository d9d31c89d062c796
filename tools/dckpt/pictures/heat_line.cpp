#include "tools/dckpt/pictures/heat_line.h"

#include <algorithm>
#include <array>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kMostLines = 8;
constexpr std::size_t kMostCells = 100;

constexpr std::array<const char*, 5> kShades = {"·", "░", "▒", "▓", "█"};
constexpr std::array<const char*, 5> kAsciiShades = {".", "-", "+", "*", "#"};

std::size_t level_of(double share) {
  if (!(share > 0)) return 0;
  return share <= 0.001 ? 1 : share <= 0.01 ? 2 : share <= 0.1 ? 3 : 4;
}

std::string cell(double share, const PictureStyle& style) {
  const std::size_t level = level_of(share);
  const std::string text = (style.unicode ? kShades : kAsciiShades).at(level);
  return level == 0 ? text : level < 3 ? tinted(text, 2, style) : alarming(text, style);
}

}  // namespace

Picture heat_line(const std::string& name, std::span<const double> shares,
                  const PictureStyle& style) {
  if (shares.empty()) return {};
  const std::size_t number = std::to_string(shares.size() - 1).size();
  const std::size_t named = std::min(columns_of(name), std::max<std::size_t>(style.columns / 3, 6));
  const std::size_t taken = kIndent + named + kBetween + number + 1;
  if (taken + 4 > style.columns) return {};
  std::size_t cells = std::min(style.columns - taken, kMostCells);
  if (cells > 10) cells -= cells % 10;  // lines begin with round numbers
  const std::size_t most = cells * kMostLines;
  const std::size_t each = (shares.size() + most - 1) / most;

  Picture lines;
  for (std::size_t at = 0; at < shares.size(); at += cells * each) {
    std::string line = std::string(kIndent, ' ') +
                       padded(at == 0 ? shortened(name, named, style.unicode) : "", named) +
                       std::string(kBetween, ' ') + padded_left(std::to_string(at), number) + " ";
    for (std::size_t i = at; i < std::min(at + cells * each, shares.size()); i += each)
      line += cell(std::ranges::max(shares.subspan(i, std::min(each, shares.size() - i))), style);
    lines.push_back(std::move(line));
  }
  if (each > 1)
    lines.push_back(std::string(kIndent, ' ') +
                    shortened(str_format("each cell: {} of them", grouped(each)),
                              style.columns - kIndent, style.unicode));
  return lines;
}

std::string heat_legend(const PictureStyle& style) {
  const auto& shades = style.unicode ? kShades : kAsciiShades;
  return str_format("{} none, {} up to 0.1%, {} 1%, {} 10%, {} more.", shades[0], shades[1],
                    shades[2], shades[3], shades[4]);
}

}  // namespace dckpt::tool
