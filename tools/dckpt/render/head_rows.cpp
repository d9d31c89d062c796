#include "tools/dckpt/render/head_rows.h"

#include <utility>

#include "tools/dckpt/render/terminal.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {

void HeadRows::add(const std::string& name, std::string text) {
  if (text.empty()) return;
  if (columns_of_stream(stdout) != kUnlimited) return table_.add({name, text});
  const std::size_t room = columns_of_prose() - 2 - 11 - 2;  // without indent and longest name
  std::string first = name;
  while (text.size() > room) {
    const std::size_t space = text.rfind(' ', room);
    if (space == std::string::npos || space == 0) break;
    table_.add({std::exchange(first, ""), text.substr(0, space)});
    text.erase(0, space + 1);
  }
  table_.add({first, text});
}

}  // namespace dckpt::tool
