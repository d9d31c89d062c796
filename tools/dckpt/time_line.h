#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dckpt::tool {

/// When something was saved, and whether it is worth anything.
struct TimeMark {
  std::int64_t time = 0;  ///< in any unit; negative values are fine
  bool good = true;
};

/// "├●──●──────○┤", exactly `columns` wide: the earliest mark at the left end, the latest at the
/// right one, and the distances between them in proportion. A place where several marks fall is
/// good if any of them is. `utf8`: otherwise "|o--o------x|". Empty if there are fewer than three
/// marks, if all have the same time, or if there are fewer than ten columns.
std::string time_line(std::span<const TimeMark> marks, std::size_t columns, bool utf8);

/// Whether text that is printed may hold more than ASCII, by LC_ALL, LC_CTYPE and LANG.
bool locale_is_utf8();

/// Width of the terminal: COLUMNS, else that of standard output, else 100.
std::size_t terminal_columns();

/// "2026-11-25 01:42" in local time; "" for 0. `since_1970` in nanoseconds.
std::string local_time(std::int64_t since_1970);
/// "just now", "5 min ago", "2 h ago", "3 d ago"; "" for a time that is 0 or still to come.
std::string age(std::int64_t since_1970, std::int64_t now);

}  // namespace dckpt::tool
