#include "dist_checkpointing/load/dropped_tensors.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <unordered_set>

#include "dist_checkpointing/load/key_groups.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/state/flatten.h"
#include "mapping/state/tree.h"

namespace dckpt {
namespace {

bool counts(const FoundTensor& tensor) {
  return !tensor.key.ends_with("_extra_state");
}

}  // namespace

std::string table_of_bytes(std::span<const FoundTensor> tensors) {
  KeySet keys;
  std::map<std::string, std::uint64_t> bytes;  // by pattern
  for (const FoundTensor& tensor : tensors) {
    keys.insert(tensor.key);
    bytes[without_numbers(tensor.key)] += tensor.bytes;
  }
  const std::vector<KeyGroup> groups = group_keys(keys);
  std::string table;
  for (const KeyGroup& group : std::span(groups).first(std::min(groups.size(), kShownGroups)))
    table += str_format("\n  {}, {}", to_string(group),
                        human_bytes(bytes.at(without_numbers(group.first))));
  if (groups.size() > kShownGroups)
    table += str_format("\n  … and {}", counted(groups.size() - kShownGroups, "more group"));
  return table;
}

std::vector<FoundTensor> not_requested(std::span<const FoundTensor> found) {
  std::vector<FoundTensor> left;
  std::ranges::copy_if(found, std::back_inserter(left), [](const FoundTensor& tensor) {
    return counts(tensor) && !tensor.requested;
  });
  return left;
}

std::vector<FoundTensor> dropped_tensors(std::span<const FoundTensor> resumed_from,
                                         const Metadata& planned, const Value* common) {
  // The keys are usually the same in the same order; then nothing is hashed.
  std::vector<const FoundTensor*> sought;
  auto next = planned.tensors.begin();
  for (const FoundTensor& tensor : resumed_from) {
    if (next != planned.tensors.end() && next->key == tensor.key)
      ++next;
    else if (counts(tensor))
      sought.push_back(&tensor);
  }
  if (sought.empty()) return {};
  std::unordered_set<std::string_view> kept;
  for (const TensorStorageMetadata& tensor : planned.tensors) kept.insert(tensor.key);
  for (const BytesStorageMetadata& object : planned.objects) kept.insert(object.key);
  std::vector<std::string> paths;
  if (common != nullptr) {
    visit_leaves(*common, [&](const KeyPath& path, const Value& leaf) {
      if (leaf.is_tensor()) paths.push_back(dotted_name(path));
    });
  }
  kept.insert(paths.begin(), paths.end());
  std::vector<FoundTensor> dropped;
  for (const FoundTensor* const tensor : sought) {
    if (!kept.contains(tensor->key)) dropped.push_back(*tensor);
  }
  return dropped;
}

}  // namespace dckpt
