#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dckpt::tool {

/// A checkpoint on the time line: when it was saved and whether it is usable.
struct TimeMark {
  std::int64_t time = 0;  ///< in any unit; negative values are fine
  bool good = true;
};

/// Draws "├●──●──────○┤", exactly `columns` wide, with the earliest mark at the left end, the
/// latest at the right end, and distances in proportion. A place with several marks is good if any
/// of them is. Without `utf8` it draws "|o--o------x|". Returns "" for fewer than three marks, if
/// all have the same time, or for fewer than ten columns.
std::string time_line(std::span<const TimeMark> marks, std::size_t columns, bool utf8);

/// Returns whether printed text may hold more than ASCII, by LC_ALL, LC_CTYPE and LANG.
bool locale_is_utf8();

/// Returns the width of the terminal: COLUMNS, else that of standard output, else 100.
std::size_t terminal_columns();

/// Returns "2026-11-25 01:42" in local time; "" for 0. `since_1970` is in nanoseconds.
std::string local_time(std::int64_t since_1970);
/// Returns "just now", "5 min ago", "2 h ago" or "3 d ago"; "" for a time that is 0 or in the
/// future.
std::string age(std::int64_t since_1970, std::int64_t now);

}  // namespace dckpt::tool
