#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dckpt::tool {

/// Rows of text in aligned columns, two spaces apart. The last column is not padded and has no
/// maximum width: on a terminal, its texts continue on the next line, and its names (keys, files)
/// are shortened in the middle.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    bool holds_names = false;
    bool below = false;  ///< see beneath()
  };
  /// Returns a last column of keys or file names.
  static Column names(std::string title) { return {std::move(title), Align::kLeft, true}; }
  /// Returns a column that a terminal too narrow for the rows leaves out if all its cells are "-",
  /// and else, if that is not enough, shows on the next line of each row.
  static Column beneath(std::string title, Align align = Align::kLeft) {
    return {std::move(title), align, false, true};
  }

  explicit Table(std::vector<Column> columns, std::string indent = "  ")
      : columns_(std::move(columns)), indent_(std::move(indent)) {}

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// Appends a column with a cell for each existing row.
  void add_column(Column column, const std::vector<std::string>& cells);
  /// Returns the columns of the longest line, if it is not wrapped.
  std::size_t columns() const;
  bool empty() const noexcept { return rows_.empty(); }

  /// Prints the rows, below a line of titles unless all titles are empty.
  void print() const;

 private:
  std::vector<std::size_t> widths() const;
  /// Returns the columns of each line of a row.
  std::vector<std::vector<std::size_t>> lines(const std::vector<std::size_t>& widths) const;
  /// Returns the cell of the last column, wrapped to what is left of the terminal.
  std::string last_cell(const std::string& cell, std::size_t start) const;

  std::vector<Column> columns_;
  std::string indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace dckpt::tool
