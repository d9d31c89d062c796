#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/dckpt/render/picture.h"

namespace dckpt::tool {

struct Bar {
  std::string name;
  double value = 0;
  std::string text{};  ///< the value as text
};

/// The maximum number of bars; of more, the first and the last are drawn.
inline constexpr std::size_t kMostBars = 16;

/// Draws a line for each bar: name, bar, text. The largest value has the longest bar.
Picture bars(std::span<const Bar> all, const PictureStyle& style);

struct BarGroup {
  std::string title;
  std::vector<Bar> bars{};
};

/// Draws groups below each other under their titles, on one scale.
Picture bars(std::span<const BarGroup> groups, const PictureStyle& style);

}  // namespace dckpt::tool
