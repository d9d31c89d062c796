#include "tools/dckpt/pictures/waterfall.h"

#include <algorithm>
#include <cmath>

#include "mapping/base/format.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kLongest = 60;
constexpr std::size_t kShortest = 6;

std::string seconds_text(double seconds) {
  return str_format("{:.3f} s", seconds);
}

std::string repeated(const char* text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

Picture waterfall(std::span<const TimeSpan> phases, const PictureStyle& style) {
  double end = 0;
  std::size_t name = 0;
  std::size_t text = 0;
  for (const TimeSpan& phase : phases) {
    end = std::max(end, phase.start + phase.slowest);
    name = std::max(name, columns_of(phase.name));
    text = std::max(text, columns_of(seconds_text(phase.slowest)));
  }
  const std::size_t taken = kIndent + name + kBetween + kBetween + text;
  if (!(end > 0) || !std::isfinite(end) || taken + kShortest > style.columns) return {};
  const std::size_t axis = std::min(style.columns - taken, kLongest);
  const auto column = [&](double seconds) {
    const double share = std::clamp(seconds / end, 0.0, 1.0);
    return static_cast<std::size_t>(std::lround(share * static_cast<double>(axis)));
  };

  const std::string margin(kIndent + name + kBetween, ' ');
  const std::string last = seconds_text(end);
  Picture lines;
  if (columns_of(last) + 4 <= axis) lines.push_back(margin + "0 s" + padded_left(last, axis - 3));
  for (const TimeSpan& phase : phases) {
    const std::size_t start = std::min(column(phase.start), axis - 1);
    const std::size_t slowest = std::max(column(phase.start + phase.slowest), start + 1);
    const std::size_t fastest =
        std::clamp(column(phase.start + std::min(phase.fastest, phase.slowest)), start, slowest);
    const std::string solid = repeated(style.unicode ? "█" : "#", fastest - start);
    const std::string shaded = repeated(style.unicode ? "░" : "-", slowest - fastest);
    lines.push_back(std::string(kIndent, ' ') + padded(phase.name, name) +
                    std::string(kBetween + start, ' ') + tinted(solid + shaded, 0, style) +
                    std::string(axis - slowest + kBetween, ' ') +
                    padded_left(seconds_text(phase.slowest), text));
  }
  return lines;
}

}  // namespace dckpt::tool
