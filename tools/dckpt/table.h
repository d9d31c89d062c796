#pragma once

#include <string>
#include <vector>

namespace dckpt::tool {

/// Rows of text in aligned columns, two blanks apart. The last column is neither padded nor
/// measured, so it may be as long as it likes; put keys and file names there. Cells of other
/// columns are plain ASCII.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns, std::string indent = "  ")
      : columns_(std::move(columns)), indent_(std::move(indent)) {}

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const noexcept { return rows_.empty(); }

  /// With a line of titles unless all are empty.
  void print() const;

 private:
  std::vector<Column> columns_;
  std::string indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace dckpt::tool
