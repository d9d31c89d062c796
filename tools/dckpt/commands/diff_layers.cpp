#include "tools/dckpt/commands/diff_layers.h"

#include "mapping/base/format.h"
#include "operations/inspect/layer_differences.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

/// Returns "" for no difference.
std::string share_text(double share) {
  if (!(share > 0)) return "";
  if (share < 0.001) return "<0.1%";
  return share < 1 ? str_format("{:.1f}%", 100 * share) : "100%";
}

}  // namespace

std::vector<DifferingLayers> differing_layers(std::span<const std::string> keys,
                                              const DiffReport& report) {
  std::vector<DifferingLayers> rows;
  for (const auto& [stack, shares] : layer_differences(keys, report)) {
    for (std::size_t first = 0; first < shares.size();) {
      const std::string share = share_text(shares[first]);
      std::size_t end = first + 1;
      while (end < shares.size() && share_text(shares[end]) == share) ++end;
      std::string names = str_format("{} {}", shown(stack), first);
      if (end - first > 1) names += str_format("…{}", end - 1);
      if (!share.empty()) rows.push_back({std::move(names), share});
      first = end;
    }
  }
  return rows;
}

}  // namespace dckpt::tool
