#include "tools/dckpt/render/text_layout.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace dckpt::tool {
namespace {

/// A unit of terminal text: a character, or an escape sequence that takes no columns.
struct Glyph {
  std::size_t size = 1;  ///< bytes
  std::size_t columns = 1;
};

using Range = std::pair<std::uint32_t, std::uint32_t>;

constexpr std::array<Range, 5> kCombining{
    {{0x300, 0x36F}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}}};
constexpr std::array<Range, 9> kWide{{{0x1100, 0x115F},
                                      {0x2E80, 0xA4CF},
                                      {0xAC00, 0xD7A3},
                                      {0xF900, 0xFAFF},
                                      {0xFE30, 0xFE6F},
                                      {0xFF00, 0xFF60},
                                      {0xFFE0, 0xFFE6},
                                      {0x1F300, 0x1FAFF},
                                      {0x20000, 0x3FFFD}}};

template <std::size_t N>
bool in(const std::array<Range, N>& ranges, std::uint32_t code) {
  return std::ranges::any_of(
      ranges, [&](Range range) { return range.first <= code && code <= range.second; });
}

Glyph glyph_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) == 0x1b && at + 1 < text.size() && text[at + 1] == '[') {
    const std::size_t end = text.find('m', at);
    if (end != std::string_view::npos) return {end + 1 - at, 0};
  }
  const unsigned first = byte(at);
  const std::size_t size = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (size == 1 || at + size > text.size()) return {};
  std::uint32_t code = first & (0xFFU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80) return {};
    code = code << 6 | (byte(at + i) & 0x3FU);
  }
  return {size, in(kCombining, code) ? std::size_t{0} : in(kWide, code) ? std::size_t{2} : 1};
}

/// Returns the indent of the parts of a line after the first.
std::size_t hanging_indent(std::string_view line, std::size_t columns) {
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t gap = line.find("  ", indent);
  if (gap != std::string_view::npos) {
    const std::size_t text = line.find_first_not_of(' ', gap);
    if (text != std::string_view::npos && columns_of(line.substr(0, text)) <= columns / 2)
      return columns_of(line.substr(0, text));
  }
  // Continued example commands are indented more, so that the next example stands out.
  const std::size_t deeper = line.substr(indent).starts_with("dckpt ") ? 4 : 0;
  return indent <= columns / 2 ? indent + deeper : 0;
}

}  // namespace

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Glyph glyph = glyph_at(text, at);
    columns += glyph.columns;
    at += glyph.size;
  }
  return columns;
}

std::string padded(std::string text, std::size_t columns) {
  const std::size_t taken = columns_of(text);
  if (taken < columns) text.append(columns - taken, ' ');
  return text;
}

std::string padded_left(const std::string& text, std::size_t columns) {
  return std::string(columns - std::min(columns, columns_of(text)), ' ') + text;
}

std::string wrapped(std::string_view line, std::size_t columns) {
  if (columns_of(line) <= columns) return std::string(line);
  const std::string indent(hanging_indent(line, columns), ' ');
  std::string out;
  std::size_t taken = 0;  // columns of the part that is being filled
  bool has_word = false;  // the part has more than its indent
  std::size_t at = 0;
  while (at < line.size()) {
    const std::size_t word = std::min(line.find_first_not_of(' ', at), line.size());
    const std::size_t end = std::min(line.find(' ', word), line.size());
    if (word == end) break;
    const std::size_t width = columns_of(line.substr(word, end - word));
    const std::size_t start = taken + (word - at);
    // A word that does not fit behind the indent gets a smaller indent.
    const std::size_t before =
        width > columns ? indent.size() : std::min(indent.size(), columns - width);
    if (has_word && start + width > columns && start > before) {
      out += '\n' + indent.substr(0, before);
      taken = before;
    } else {
      out += line.substr(at, word - at);
      taken = start;
    }
    out += line.substr(word, end - word);
    taken += width;
    has_word = true;
    at = end;
  }
  return out;
}

std::string shortened(std::string_view name, std::size_t columns, bool unicode) {
  const std::size_t whole = columns_of(name);
  if (whole <= columns) return std::string(name);
  const std::string_view gap = unicode ? "…" : "...";
  const std::size_t room = columns - std::min(columns, columns_of(gap));
  if (room == 0) return unicode && columns > 0 ? "…" : std::string(columns, '.');
  std::vector<std::size_t> starts;  // offsets of the characters, and of the end
  std::vector<std::size_t> before;  // columns before each of them
  std::size_t taken = 0;
  for (std::size_t at = 0; at < name.size();) {
    const Glyph glyph = glyph_at(name, at);
    starts.push_back(at);
    before.push_back(taken);
    taken += glyph.columns;
    at += glyph.size;
  }
  starts.push_back(name.size());
  before.push_back(taken);

  const std::size_t most_tail = room - room * 3 / 10;
  std::size_t tail = static_cast<std::size_t>(std::ranges::lower_bound(before, whole - most_tail) -
                                              before.begin());
  const auto begins = [&](std::size_t i) {
    return i > 0 && (name[starts[i] - 1] == '.' || name[starts[i] - 1] == '/');
  };
  for (std::size_t i = tail; i + 1 < starts.size() && before[i] <= before[tail] + most_tail / 3;
       ++i) {
    if (!begins(i)) continue;
    tail = i;
    break;
  }
  const std::size_t most_head = room - (whole - before[tail]);
  std::size_t head =
      static_cast<std::size_t>(std::ranges::upper_bound(before, most_head) - before.begin()) - 1;
  for (std::size_t i = head; i > 0 && before[i] + most_head / 3 >= before[head]; --i) {
    if (name[starts[i]] != '.' && name[starts[i]] != '/') continue;
    head = i;
    break;
  }
  return std::string(name.substr(0, starts[head])) + std::string(gap) +
         std::string(name.substr(starts[tail]));
}

}  // namespace dckpt::tool
