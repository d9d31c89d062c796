#include "dist_checkpointing/upkeep/set_aside.h"

#include "dist_checkpointing/tracker.h"
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
  const bool is_ours = original == kTrackerFile || original == kReleaseDirectory ||
                       parse_iteration_directory(original);
  if (!is_ours || number.value_or(0) == 0 || *number > kMostNumbers ||
      to_string(AsideName{original, *number}) != name)
    return std::nullopt;
  return AsideName{original, *number};
}

}  // namespace dckpt
