#include "tools/dckpt/render/picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "mapping/base/format.h"

namespace dckpt::tool {

std::string tinted(const std::string& text, std::size_t number, const PictureStyle& style) {
  // Green, yellow, blue, magenta, cyan and their bright variants. Red is reserved for problems.
  constexpr std::array kColors = {32, 36, 33, 35, 34, 92, 96, 93, 95, 94};
  if (!style.color) return text;
  return str_format("\x1b[{}m{}\x1b[0m", kColors.at(number % kColors.size()), text);
}

std::string alarming(const std::string& text, const PictureStyle& style) {
  return style.color ? str_format("\x1b[31m{}\x1b[0m", text) : text;
}

std::string bar(double share, std::size_t columns, const PictureStyle& style) {
  constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  if (!(share > 0) || columns == 0) return "";
  const std::size_t parts = style.unicode ? 8 : 1;
  const double length = std::min(share, 1.0) * static_cast<double>(columns * parts);
  // Any nonzero share is visible.
  const auto filled = std::max<std::size_t>(static_cast<std::size_t>(std::lround(length)), 1);
  std::string text;
  for (std::size_t i = 0; i < filled / parts; ++i) text += style.unicode ? "█" : "#";
  return text + kEighths.at(style.unicode ? filled % parts : 0);
}

}  // namespace dckpt::tool
