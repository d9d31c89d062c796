#include "tools/dckpt/table.h"

#include <algorithm>

#include "tools/dckpt/terminal.h"
#include "tools/dckpt/text_layout.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kNarrow =
    24;  // with fewer columns left, the last cell gets a line of its own

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

void Table::print() const {
  const std::vector<std::size_t> widths = this->widths();
  const auto line = [&](const auto& cell_of) {
    std::string text = indent_;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const bool last = c + 1 == columns_.size();
      const bool right = columns_[c].align == Align::kRight;
      if (last && !right)
        text += last_cell(cell_of(c), columns_of(text));
      else
        text += right ? padded_left(cell_of(c), widths[c]) : padded(cell_of(c), widths[c]) + "  ";
      if (!last && right) text += "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  if (std::ranges::any_of(columns_, [](const Column& column) { return !column.title.empty(); })) {
    tool::print(styled(Style::kDim, line([&](std::size_t c) -> const std::string& {
                         return columns_[c].title;
                       })) +
                "\n");
  }
  for (const auto& row : rows_)
    tool::print(line([&](std::size_t c) -> const std::string& { return row[c]; }) + "\n");
}

}  // namespace dckpt::tool
