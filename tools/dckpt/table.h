#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dckpt::tool {

/// Rows of text in aligned columns, two blanks apart. The last column is not padded and may be as
/// long as it likes: on a terminal texts there go on in the next line, and names (keys, files) lose
/// their middle.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    bool holds_names = false;
  };
  /// A last column of keys or file names.
  static Column names(std::string title) { return {std::move(title), Align::kLeft, true}; }

  explicit Table(std::vector<Column> columns, std::string indent = "  ")
      : columns_(std::move(columns)), indent_(std::move(indent)) {}

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// A column behind the others, which has a cell for each row there is.
  void add_column(Column column, const std::vector<std::string>& cells);
  /// Of the longest line, if it is not wrapped.
  std::size_t columns() const;
  bool empty() const noexcept { return rows_.empty(); }

  /// With a line of titles unless all are empty.
  void print() const;

 private:
  std::vector<std::size_t> widths() const;
  /// The cell of the last column, in lines of what is left of the terminal.
  std::string last_cell(const std::string& cell, std::size_t start) const;

  std::vector<Column> columns_;
  std::string indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace dckpt::tool
