#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dckpt::tool {

/// The drawing style. A picture depends only on its data and its style. No line is longer than
/// `columns`; a picture that needs more columns has no lines.
struct PictureStyle {
  std::size_t columns = 80;
  bool unicode = true;  ///< false: ASCII
  bool color = false;
};

using Picture = std::vector<std::string>;

constexpr std::size_t kIndent = 2;   ///< columns before the rows of a picture
constexpr std::size_t kBetween = 2;  ///< columns between its parts

/// Returns the text in one of a few colors, chosen by `number` so that neighbors differ; plain
/// without color.
std::string tinted(const std::string& text, std::size_t number, const PictureStyle& style);
/// Returns the text in the color of problems.
std::string alarming(const std::string& text, const PictureStyle& style);
/// Returns a bar over this share of the columns, in eighths of a column with Unicode.
std::string bar(double share, std::size_t columns, const PictureStyle& style);

}  // namespace dckpt::tool
