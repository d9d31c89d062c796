#include "tools/dckpt/pictures/tree.h"

#include <algorithm>

namespace dckpt::tool {

std::vector<std::string> branches(std::span<const std::size_t> depths, bool unicode) {
  std::vector<std::string> texts(depths.size());
  std::vector<bool> goes_on;  // by depth: a later row is on the same branch
  for (std::size_t i = depths.size(); i-- > 0;) {
    const std::size_t depth = depths[i];
    goes_on.resize(std::max(goes_on.size(), depth + 1));
    for (std::size_t level = 1; level < depth; ++level)
      texts[i] += !goes_on[level] ? "   " : unicode ? "│  " : "|  ";
    if (depth > 0) {
      if (goes_on[depth])
        texts[i] += unicode ? "├─ " : "|- ";
      else
        texts[i] += unicode ? "└─ " : "`- ";
    }
    goes_on.resize(depth + 1);
    goes_on[depth] = true;
  }
  return texts;
}

}  // namespace dckpt::tool
