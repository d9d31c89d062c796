#include "dist_checkpointing/training_root/set_aside.h"

#include <algorithm>

#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/text.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

constexpr const char* kQuarantined = "quarantined";
constexpr std::uint64_t kMostNumbers = 1'000'000;

}  // namespace

std::string to_string(const AsideName& name) {
  return to_string(HiddenSibling{name.original, kQuarantined, std::to_string(name.number)});
}

std::optional<AsideName> parse_set_aside(std::string_view name) {
  const auto sibling = parse_hidden_sibling(name);
  if (!sibling || sibling->purpose != kQuarantined) return std::nullopt;
  const auto number = parse_u64(sibling->token);
  const std::string& original = sibling->name;
  const bool is_ours = original == kTrackerFile || original == kBridgeTrackerFile ||
                       original == kReleaseDirectory || parse_iteration_directory(original);
  if (!is_ours || number.value_or(0) == 0 || *number > kMostNumbers ||
      to_string(AsideName{original, *number}) != name)
    return std::nullopt;
  return AsideName{original, *number};
}

AsideName next_aside(const Storage& directory, const std::string& original) {
  AsideName next{original, 1};
  for (const FileInfo& entry : directory.list("")) {
    const auto sibling = parse_hidden_sibling(entry.name);
    if (!sibling || sibling->name != original || sibling->purpose != kQuarantined) continue;
    next.number = std::max(next.number, parse_u64(sibling->token).value_or(0) + 1);
  }
  return next;
}

}  // namespace dckpt
