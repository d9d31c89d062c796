#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tools/dckpt/render/picture.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::testing {

/// Returns a picture after a line break, the way that goldens in the source begin.
inline std::string text_of(const tool::Picture& picture) {
  std::string text = "\n";
  for (const std::string& line : picture) text += line + "\n";
  return text;
}

inline std::size_t widest(const tool::Picture& picture) {
  std::size_t columns = 0;
  for (const std::string& line : picture) columns = std::max(columns, tool::columns_of(line));
  return columns;
}

inline constexpr tool::PictureStyle kWide{.columns = 80};
inline constexpr tool::PictureStyle kNarrow{.columns = 40};
inline constexpr tool::PictureStyle kAscii{.columns = 80, .unicode = false};

}  // namespace dckpt::testing
