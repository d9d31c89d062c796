#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

struct Bar {
  std::string name;
  double value = 0;
  std::string text{};  ///< of the value
};

/// More bars than this are the first and the last ones.
inline constexpr std::size_t kMostBars = 16;

/// A line for each: name, bar, text. The bar of the largest value is the longest.
Picture bars(std::span<const Bar> all, const PictureStyle& style);

struct BarGroup {
  std::string title;
  std::vector<Bar> bars{};
};

/// Groups below each other under their titles, of one scale.
Picture bars(std::span<const BarGroup> groups, const PictureStyle& style);

}  // namespace dckpt::tool
