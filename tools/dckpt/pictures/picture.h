#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dckpt::tool {

/// How to draw. Pictures are functions of their data and this alone, and no line of one is longer
/// than `columns`; where too few columns are left for a picture it has no lines.
struct PictureStyle {
  std::size_t columns = 80;
  bool unicode = true;  ///< else ASCII
  bool color = false;
};

using Picture = std::vector<std::string>;

/// Text in one of a few colors that tell neighbors apart, by its number; plain without color.
std::string tinted(const std::string& text, std::size_t number, const PictureStyle& style);
/// Text that shows that something is wrong.
std::string alarming(const std::string& text, const PictureStyle& style);
/// A bar over this share of the columns, in eighths of a column with Unicode.
std::string bar(double share, std::size_t columns, const PictureStyle& style);

}  // namespace dckpt::tool
