#include "tools/dckpt/render/time_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::tool {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

struct Glyphs {
  const char *begin, *end, *nothing, *good, *bad;
};
constexpr Glyphs kUnicode{"├", "┤", "─", "●", "○"};
constexpr Glyphs kAscii{"|", "|", "-", "o", "x"};

}  // namespace

std::string time_line(std::span<const TimeMark> marks, std::size_t columns, bool utf8) {
  constexpr std::size_t kFewestColumns = 10;
  if (marks.size() < 3 || columns < kFewestColumns) return "";
  const auto [earliest, latest] = std::ranges::minmax(marks, {}, &TimeMark::time);
  if (earliest.time == latest.time) return "";
  const std::size_t places = columns - 2;
  const double first = static_cast<double>(earliest.time);
  const double step = (static_cast<double>(latest.time) - first) / static_cast<double>(places - 1);
  const Glyphs& glyphs = utf8 ? kUnicode : kAscii;
  std::vector<const char*> line(places, glyphs.nothing);
  for (const TimeMark& mark : marks) {
    const double place = (static_cast<double>(mark.time) - first) / step + 0.5;
    const char*& glyph = line[std::min(places - 1, static_cast<std::size_t>(place))];
    if (glyph != glyphs.good) glyph = mark.good ? glyphs.good : glyphs.bad;
  }
  std::string text = glyphs.begin;
  for (const char* const glyph : line) text += glyph;
  return text + glyphs.end;
}

bool locale_is_utf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale = value;
    std::ranges::transform(locale, locale.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

std::size_t terminal_columns() {
  constexpr std::size_t kDefault = 100, kMost = 1000;
  const char* const variable = std::getenv("COLUMNS");
  if (const auto columns = parse_u64(variable == nullptr ? "" : variable); columns && *columns > 0)
    return std::min<std::size_t>(*columns, kMost);
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::min<std::size_t>(size.ws_col, kMost);
  return kDefault;
}

std::string local_time(std::int64_t since_1970) {
  if (since_1970 == 0) return "";
  const auto seconds = static_cast<std::time_t>(since_1970 / kSecond);
  std::tm fields{};
  if (::localtime_r(&seconds, &fields) == nullptr) return "";
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &fields)};
}

std::string age(std::int64_t since_1970, std::int64_t now) {
  if (since_1970 == 0 || since_1970 > now) return "";
  const std::int64_t seconds = (now - since_1970) / kSecond;
  constexpr std::int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (seconds < kMinute) return "just now";
  if (seconds < 2 * kHour) return str_format("{} min ago", seconds / kMinute);
  if (seconds < 2 * kDay) return str_format("{} h ago", seconds / kHour);
  return str_format("{} d ago", seconds / kDay);
}

}  // namespace dckpt::tool
