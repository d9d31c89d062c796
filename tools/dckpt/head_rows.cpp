#include "tools/dckpt/head_rows.h"

#include <utility>

namespace dckpt::tool {

void HeadRows::add(const std::string& name, std::string text) {
  if (text.empty()) return;
  constexpr std::size_t kColumns = 100;
  constexpr std::size_t kText = kColumns - 2 - 11 - 2;  // beside indent and the longest name
  std::string first = name;
  while (text.size() > kText) {
    const std::size_t space = text.rfind(' ', kText);
    if (space == std::string::npos || space == 0) break;
    table_.add({std::exchange(first, ""), text.substr(0, space)});
    text.erase(0, space + 1);
  }
  table_.add({first, text});
}

}  // namespace dckpt::tool
