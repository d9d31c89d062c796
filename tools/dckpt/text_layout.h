#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Text in the columns of a terminal. Bytes that are not UTF-8 take a column each; colors (escape
// sequences that end in 'm') take none.

namespace dckpt::tool {

inline constexpr std::size_t kUnlimited = static_cast<std::size_t>(-1);

/// Columns that a line takes on a terminal; wide East Asian characters and emoji take two.
std::size_t columns_of(std::string_view text);

/// `text` followed by blanks up to this many columns, or preceded by them.
std::string padded(std::string text, std::size_t columns);
std::string padded_left(const std::string& text, std::size_t columns);

/// A line broken at blanks so that each part fits, without its line break. Parts after the first
/// are indented as the text of the line is: behind "  name  " or "  --option VALUE   ", else as the
/// line itself. A word that is longer than a line stays whole, to be copied from the terminal.
std::string wrapped(std::string_view line, std::size_t columns);

/// A key or file name without its middle, cut where names begin: "decoder.layers…fc1.weight". Both
/// ends stay, the last component rather than the first.
std::string shortened(std::string_view name, std::size_t columns, bool unicode);

}  // namespace dckpt::tool
