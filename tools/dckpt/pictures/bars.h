#pragma once

#include <span>
#include <string>

#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

struct Bar {
  std::string name;
  double value = 0;
  std::string text{};  ///< of the value
};

/// More bars than this are the first and the last ones.
inline constexpr std::size_t kMostBars = 16;

/// A line for each: name, bar, text. The longest bar is `longest`, or the largest value if that is
/// larger.
Picture bars(std::span<const Bar> all, const PictureStyle& style, double longest = 0);

}  // namespace dckpt::tool
