#include "tools/dckpt/table.h"

#include <algorithm>

#include "tools/dckpt/terminal.h"

namespace dckpt::tool {

void Table::print() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  const auto line = [&](const auto& cell_of) {
    std::string text = indent_;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const bool last = c + 1 == columns_.size();
      const std::string padding(last && columns_[c].align == Align::kLeft
                                    ? 0
                                    : widths[c] - std::min(widths[c], cell.size()),
                                ' ');
      text += columns_[c].align == Align::kRight ? padding + cell : cell + padding;
      if (!last) text += "  ";
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
