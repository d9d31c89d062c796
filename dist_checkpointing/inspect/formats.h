#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// What is known of one name: a strategy may be there for reading, for writing, or both.
struct FormatEntry {
  std::string name;
  std::vector<int> versions{};  ///< ascending
  bool reads = false;
  bool writes = false;
  std::string about{};  ///< one line
};

/// In the order of the registry.
std::vector<FormatEntry> list_formats();

}  // namespace dckpt
