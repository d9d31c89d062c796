#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Layout of text in terminal columns. Bytes that are not UTF-8 take a column each; colors (escape
// sequences that end in 'm') take none.

namespace dckpt::tool {

inline constexpr std::size_t kUnlimited = static_cast<std::size_t>(-1);

/// Returns the columns that a line takes on a terminal; wide East Asian characters and emoji take
/// two.
std::size_t columns_of(std::string_view text);

/// Return `text` followed by spaces up to this many columns, or preceded by them.
std::string padded(std::string text, std::size_t columns);
std::string padded_left(const std::string& text, std::size_t columns);

/// Breaks a line (without its line break) at spaces so that each part fits. Parts after the first
/// are indented like the text of the line: behind "  name  " or "  --option VALUE   ", else like
/// the line itself. A word longer than a line stays whole, to be copied from the terminal.
std::string wrapped(std::string_view line, std::size_t columns);

/// Shortens a key or file name in the middle, cutting where components begin:
/// "decoder.layers…fc1.weight". Both ends stay, the last component rather than the first.
std::string shortened(std::string_view name, std::size_t columns, bool unicode);

}  // namespace dckpt::tool
