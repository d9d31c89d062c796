#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The strategies of one name: one that reads, one that writes, or both.
struct FormatEntry {
  std::string name;
  std::vector<int> versions{};  ///< ascending
  bool reads = false;
  bool writes = false;
  std::string about{};  ///< one line
};

/// Returns the formats in the order of the registry.
[[nodiscard]] std::vector<FormatEntry> list_formats();

}  // namespace dckpt
