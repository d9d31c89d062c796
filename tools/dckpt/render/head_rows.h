#pragma once

#include <string>

#include "tools/dckpt/render/table.h"

namespace dckpt::tool {

/// Rows of name and text at the head of a report.
class HeadRows {
 public:
  /// Adds a row, unless `text` is empty.
  void add(const std::string& name, std::string text);
  void print() const { table_.print(); }

 private:
  Table table_{{{""}, {""}}};
};

}  // namespace dckpt::tool
