#pragma once

#include <string>

#include "tools/dckpt/table.h"

namespace dckpt::tool {

/// Rows of a name and a text at the head of a report.
class HeadRows {
 public:
  /// Without a text there is no row.
  void add(const std::string& name, std::string text);
  void print() const { table_.print(); }

 private:
  Table table_{{{""}, {""}}};
};

}  // namespace dckpt::tool
