#include "tools/dckpt/render/table.h"

#include <algorithm>
#include <numeric>

#include "tools/dckpt/render/terminal.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {
namespace {

// With fewer columns left, the last cell gets a line of its own.
constexpr std::size_t kNarrow = 24;
constexpr std::string_view kBelowIndent = "  ";

}  // namespace

std::string Table::last_cell(const std::string& cell, std::size_t start) const {
  const std::size_t columns = columns_of_stream(stdout);
  if (columns == kUnlimited || start + kNarrow > columns) return cell;
  if (columns_.back().holds_names) return shortened(cell, columns - start, shows_unicode());
  std::string text;
  for (const char c : wrapped(cell, columns - start)) {
    text += c;
    if (c == '\n') text.append(start, ' ');
  }
  return text;
}

void Table::add_column(Column column, const std::vector<std::string>& cells) {
  columns_.push_back(std::move(column));
  for (std::size_t row = 0; row < rows_.size(); ++row) rows_[row].push_back(cells.at(row));
}

std::size_t Table::columns() const {
  std::size_t columns = columns_of(indent_);
  for (const std::size_t width : widths()) columns += width + 2;
  return columns - 2;
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_of(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, columns_of(row[c]));
    widths.push_back(width);
  }
  return widths;
}

std::vector<std::vector<std::size_t>> Table::lines(const std::vector<std::size_t>& widths) const {
  const std::size_t room = columns_of_stream(stdout);
  std::vector<std::size_t> all(columns_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto fits = [&](const std::vector<std::size_t>& line) {
    std::size_t needed = columns_of(indent_);
    for (const std::size_t c : line)
      needed += 2 + (columns_[c].holds_names ? std::min(widths[c], kNarrow) : widths[c]);
    return needed - 2 <= room;
  };
  const auto is_below = [&](std::size_t c) { return columns_[c].below; };
  if (room == kUnlimited || fits(all) || std::ranges::none_of(all, is_below)) return {all};
  std::erase_if(all, [&](std::size_t c) {
    return is_below(c) &&
           std::ranges::all_of(rows_, [&](const auto& row) { return row[c] == "-"; });
  });
  if (fits(all)) return {all};
  std::vector<std::vector<std::size_t>> lines(1);
  std::size_t taken = room;
  for (const std::size_t c : all) {
    if (!is_below(c)) {
      lines.front().push_back(c);
      continue;
    }
    if (taken + widths[c] > room) {
      lines.emplace_back();
      taken = columns_of(indent_) + kBelowIndent.size();
    }
    lines.back().push_back(c);
    taken += widths[c] + 2;
  }
  return lines;
}

void Table::print() const {
  const std::vector<std::size_t> widths = this->widths();
  const std::vector<std::vector<std::size_t>> lines = this->lines(widths);
  const auto print_row = [&](const auto& cell_of, bool dim) {
    for (const std::vector<std::size_t>& line : lines) {
      std::string text = indent_;
      if (&line != &lines.front()) text += kBelowIndent;
      for (const std::size_t c : line) {
        const bool right = columns_[c].align == Align::kRight;
        if (c + 1 == columns_.size() && !right)
          text += last_cell(cell_of(c), columns_of(text));
        else
          text +=
              (right ? padded_left(cell_of(c), widths[c]) : padded(cell_of(c), widths[c])) + "  ";
      }
      text.erase(text.find_last_not_of(' ') + 1);
      tool::print((dim ? styled(Style::kDim, text) : text) + "\n");
    }
  };
  if (std::ranges::any_of(columns_, [](const Column& column) { return !column.title.empty(); }))
    print_row([&](std::size_t c) -> const std::string& { return columns_[c].title; }, true);
  for (const auto& row : rows_)
    print_row([&](std::size_t c) -> const std::string& { return row[c]; }, false);
}

}  // namespace dckpt::tool
