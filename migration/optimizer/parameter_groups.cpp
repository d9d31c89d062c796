#include "migration/optimizer/parameter_groups.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr std::size_t kMaxGroups = 1000;  // Megatron makes a handful

}  // namespace

void add_once(std::vector<Value>& groups, Value options) {
  if (std::ranges::find(groups, options) != groups.end()) return;
  if (groups.size() == kMaxGroups)
    throw_error(ErrorCode::kUnsupported,
                "the optimizer has more than {} different parameter groups", grouped(kMaxGroups));
  groups.push_back(std::move(options));
}

std::vector<Value> parameter_groups(const Value& common) {
  std::vector<Value> groups;
  const auto add = [&](const Value& optimizer) {
    const Value* const inner = optimizer.find("optimizer");
    const Value* const found = inner == nullptr ? nullptr : inner->find("param_groups");
    if (found == nullptr || !found->is_list()) return;
    for (const Value& group : found->items()) {
      if (!group.is_dict()) continue;
      Value options = group;
      options.mutable_dict().erase("params");
      add_once(groups, std::move(options));
    }
  };
  const Value* const optimizer = common.find("optimizer");
  if (optimizer == nullptr || !optimizer->is_dict()) return groups;
  add(*optimizer);
  for (const auto& [number, member] : optimizer->as_dict()) {
    if (number.is_int()) add(member);
  }
  return groups;
}

}  // namespace dckpt
