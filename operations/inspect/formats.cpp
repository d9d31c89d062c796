#include "operations/inspect/formats.h"

#include <algorithm>
#include <span>

#include "strategies/registry/registry.h"

namespace dckpt {

std::vector<FormatEntry> list_formats() {
  std::vector<FormatEntry> formats;
  const auto add = [&](const std::string& name, std::span<const int> versions,
                       const std::string& about) -> FormatEntry& {
    const auto found = std::ranges::find(formats, name, &FormatEntry::name);
    FormatEntry& known = found != formats.end() ? *found : formats.emplace_back(FormatEntry{name});
    std::vector<int>& all = known.versions;
    all.insert(all.end(), versions.begin(), versions.end());
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    if (known.about.empty()) known.about = about;
    return known;
  };
  for (const LoadStrategyEntry& strategy : load_strategies())
    add(strategy.name, strategy.versions, strategy.about).reads = true;
  for (const SaveStrategyEntry& strategy : save_strategies())
    add(strategy.name, {&strategy.version, 1}, strategy.about).writes = true;
  return formats;
}

}  // namespace dckpt
